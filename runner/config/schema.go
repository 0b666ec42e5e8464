package config

import (
	_ "embed"
	"encoding/json"
	"strings"
)

//go:embed schema.json
var schema []byte

// Schema gives the JSON Schema of the file, for editors. A test makes it from
// sections.go (go test ./runner/config -update) and compares.
func Schema() []byte { return append([]byte(nil), schema...) }

// described gives what the schema says of a key: meaning, unit and default.
func described(path string) string {
	type node struct {
		Description string                     `json:"description"`
		Properties  map[string]json.RawMessage `json:"properties"`
	}
	var at node
	if err := json.Unmarshal(schema, &at); err != nil {
		panic("config: embedded schema: " + err.Error())
	}
	for key := range strings.SplitSeq(path, ".") {
		key, _, _ = strings.Cut(key, "[") // a list's entry is described by its list
		next := at.Properties[key]
		if at = (node{}); json.Unmarshal(next, &at) != nil {
			return ""
		}
	}
	return at.Description
}
