// Package config reads the one YAML file that describes a run. It is strict:
// an unknown key, a wrong type or an impossible value is a Problem with file,
// line, column and path, and all problems are reported at once. Nothing is
// clamped, guessed or ignored. Workers never read this file; they get their
// part of it from the supervisor.
package config
