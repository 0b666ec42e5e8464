"""Workers of dflash-runner: DFlash targets and drafters under a Go supervisor."""
