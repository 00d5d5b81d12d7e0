"""Surface hopping: classical nuclei, electronic amplitudes, hops between adiabatic states.

It knows neither ASE nor potentials: `surfaces.Surfaces` is any function of positions.
"""
