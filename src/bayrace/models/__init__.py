"""Networks: energies as pure functions of parameters and graph, and their derivatives."""
