//go:build !race

package e2e

// raceEnabled has the binary built with the race detector when the tests are.
const raceEnabled = false
