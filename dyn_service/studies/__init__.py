"""Studies: labelled and lazy arrays, and questions about millions of states.

labels        `xarray.DataArray` and dask arrays as inputs of any query
plan          the states of a study: grids, samples, recordings, by index
keys          errors with the paths of keys
joint_loads   loads of bearings and drives by cause: envelopes, duration curves, duty cycles, a page
closed_loop   rollouts with a compiled law as a query of a study: Monte Carlo
stores        files of a study's store, with checksums
study         `Robot.study`: reductions, the store, threads or a Dask cluster
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dyn_service.support.lazy_names import lazy_names

if TYPE_CHECKING:
    from dyn_service.studies.closed_loop import ClosedLoop
    from dyn_service.studies.joint_loads import DesignLoads, design_loads, duty_cycle
    from dyn_service.studies.study import Study

__all__ = ["ClosedLoop", "DesignLoads", "Study", "design_loads", "duty_cycle"]

__getattr__ = lazy_names(
    __name__,
    {
        "dyn_service.studies.closed_loop": "ClosedLoop",
        "dyn_service.studies.joint_loads": "DesignLoads design_loads duty_cycle",
        "dyn_service.studies.study": "Study",
    },
)
