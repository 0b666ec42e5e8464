// Package python carries the Python side of dflash-runner inside the binary:
// the package itself and the locks of its environments, so that an installed
// binary and `go run` in a checkout start the same workers.
package python

import "embed"

// Package is the import tree: what a worker's PYTHONPATH must hold. Patterns
// name files, so that byte code that lies beside them stays out.
//
//go:embed dflash_runner/*.py dflash_runner/*/*.py dflash_runner/*/*/*.py
var Package embed.FS

// Requirements is the lock of the workers' and jobs' environment, and the
// tests', with a hash for every file.
//
//go:embed requirements.lock
var Requirements []byte

// CompatRequirements is the lock of the environment in which the public
// `dflash` package loads an export.
//
//go:embed compat/requirements.lock
var CompatRequirements []byte

// Installer is the lock of what installs the other two.
//
//go:embed installer.lock
var Installer []byte
