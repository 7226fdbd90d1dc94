"""One optimizer update: loss, precision, clipping, noise, accumulation, optimizer, schedule."""
