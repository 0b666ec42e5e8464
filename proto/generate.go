// Package proto holds the schemas that Go and Python share, and what is
// generated from them. lane.md is the schema of the lane.
package proto

//go:generate ./generate.sh
