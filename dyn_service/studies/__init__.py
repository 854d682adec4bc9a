"""Studies: labelled and lazy arrays, and questions about millions of states.

labels        `xarray.DataArray` and dask arrays as inputs of any query
plan          the states of a study: grids, samples, recordings, by index
keys          errors with the paths of keys
design_loads  loads of bearings and drives by cause: envelopes, duration curves, duty cycles, a page
closed_loop   rollouts with a compiled law as a query of a study: Monte Carlo
stores        files of a study's store, with checksums
study         `Robot.study`: reductions, the store, threads or a Dask cluster
"""
