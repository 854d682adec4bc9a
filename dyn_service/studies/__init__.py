"""Studies: labelled and lazy arrays, and questions about millions of states.

labels        `xarray.DataArray` and dask arrays as inputs of any query
plan          the states of a study: grids, samples, recordings, by index
study         `Robot.study`: reductions, the store, threads or a Dask cluster
"""
