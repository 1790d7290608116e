"""Irregular multivariate series: classification, regression, forecasting and imputation."""
