//go:build !race

package core

// raceEnabled makes searches smaller: they run several times slower.
const raceEnabled = false
