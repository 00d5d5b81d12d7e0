"""How good predictions are: accuracy of the means, quality of the uncertainties."""
