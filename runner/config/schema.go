package config

import _ "embed"

//go:embed schema.json
var schema []byte

// Schema gives the JSON Schema of the file, for editors. A test makes it from
// sections.go (go test ./runner/config -update) and compares.
func Schema() []byte { return append([]byte(nil), schema...) }
