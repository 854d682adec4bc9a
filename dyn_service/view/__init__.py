"""What a robot looks like, and its motion, in a browser.

`shapes.py` reads what a file says of looks, which no importer of dynamics does; `scene.py` says what stands where in
which colour; `motions.py` reads recordings. None of these needs a viewer. `viewer.py` hands it all to viser.
"""
