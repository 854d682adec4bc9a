"""Studies: labelled and lazy arrays, and questions about millions of states.

labels        `xarray.DataArray` and dask arrays as inputs of any query
"""
