-----BEGIN PGP SIGNATURE-----

iLMEAAEIAB0WIQTpmwgvS3iFGaF1vwZZdz+lmtxhfgUCaVcKgAAKCRBZdz+lmtxh
fto9BACAsEQwcaeJeg1X8rjAn0P0GQpgktCe3brtR+fu6me75Ekvzd1/s9glRNjY
QpCANuYhhexhLNarmIyow9cFa3ov7Gda3663mlcFAWx8R9VHTPAiLrvVABoen2gt
mkiUD8ZMXSufzLMj5e+yBKaYXuQmqQzbfI4v5KXUet9mzjcPaA==
=NPYP
-----END PGP SIGNATURE-----
