package config

import (
	"bytes"
	"encoding/json"
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "rewrite schema.json")

// TestSchema makes the schema from the structs and their comments; the file in
// the tree must be that.
func TestSchema(t *testing.T) {
	docs := fieldDocs(t)
	root := schemaOf(t, reflect.TypeFor[Config](), reflect.ValueOf(*defaults()), docs)
	root["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	root["title"] = "dflash-runner configuration"
	root["required"] = []string{"version"}
	want, err := json.MarshalIndent(root, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	want = append(want, '\n')
	if *update {
		if err := os.WriteFile("schema.json", want, 0o644); err != nil {
			t.Fatal(err)
		}
	} else if !bytes.Equal(want, Schema()) {
		t.Errorf("schema.json is not what sections.go says: run go test ./runner/config -run TestSchema -update")
	}
}

// TestDocumentedDefaults compares the "Default x." of every comment with what
// defaults gives.
func TestDocumentedDefaults(t *testing.T) {
	docs := fieldDocs(t)
	walk(reflect.TypeFor[Config](), reflect.ValueOf(*defaults()), "", func(path, name string, v reflect.Value) {
		doc := docs[name]
		if doc == "" {
			t.Errorf("%s: no comment on %s", path, name)
		}
		if v.Kind() == reflect.Struct || path == "version" || path == "run.name" {
			return
		}
		_, said, ok := strings.Cut(doc, "Default ")
		if said = strings.TrimSuffix(said, "."); !ok || said != spell(v) {
			t.Errorf("%s: comment says default %q, the code %q", path, said, spell(v))
		}
	})
}

// walk visits every field, sections included; name is "Struct.Field".
func walk(t reflect.Type, v reflect.Value, path string, visit func(path, name string, v reflect.Value)) {
	for i := range t.NumField() {
		f := t.Field(i)
		if !f.IsExported() {
			continue
		}
		p := join(path, f.Tag.Get("yaml"))
		visit(p, t.Name()+"."+f.Name, v.Field(i))
		if f.Type.Kind() == reflect.Struct {
			walk(f.Type, v.Field(i), p, visit)
		}
	}
}

// spell writes a default as the comments do.
func spell(v reflect.Value) string {
	switch x := v.Interface().(type) {
	case Duration:
		return x.String()
	case Size:
		return x.String()
	case Count:
		return x.String()
	case string:
		if x == "" {
			return "empty"
		}
		return x
	case []int:
		if len(x) == 0 {
			return "empty"
		}
		b, _ := json.Marshal(x)
		return strings.ReplaceAll(string(b), ",", ", ")
	case []float64:
		b, _ := json.Marshal(x)
		return strings.ReplaceAll(string(b), ",", ", ")
	case []Plugin:
		return map[bool]string{true: "empty"}[len(x) == 0]
	case []string:
		return map[bool]string{true: "empty"}[len(x) == 0]
	case float64:
		return strconv.FormatFloat(x, 'g', -1, 64)
	}
	b, _ := json.Marshal(v.Interface())
	return string(b)
}

// fieldDocs reads the comments of the sections.
func fieldDocs(t *testing.T) map[string]string {
	t.Helper()
	docs := map[string]string{}
	for _, name := range []string{"sections.go", "scheduler.go", "counts.go"} {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		addDocs(docs, file)
	}
	return docs
}

func addDocs(docs map[string]string, file *ast.File) {
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.TypeSpec)
		if !ok {
			return true
		}
		section, ok := spec.Type.(*ast.StructType)
		if !ok {
			return false
		}
		for _, f := range section.Fields.List {
			docs[spec.Name.Name+"."+f.Names[0].Name] = strings.ReplaceAll(strings.TrimSpace(f.Doc.Text()), "\n", " ")
		}
		return false
	})
}

func schemaOf(t *testing.T, typ reflect.Type, v reflect.Value, docs map[string]string) map[string]any {
	properties := map[string]any{}
	for i := range typ.NumField() {
		f := typ.Field(i)
		if !f.IsExported() {
			continue
		}
		var s map[string]any
		if f.Type.Kind() == reflect.Struct {
			s = schemaOf(t, f.Type, v.Field(i), docs)
		} else {
			s = leafOf(t, f.Type, f.Tag, docs)
			s["default"] = v.Field(i).Interface()
			if f.Type.Kind() == reflect.Map {
				s["default"] = map[string]any{}
			}
			if v.Field(i).Kind() == reflect.Slice && v.Field(i).Len() == 0 {
				s["default"] = []any{}
			}
		}
		s["description"] = docs[typ.Name()+"."+f.Name]
		properties[f.Tag.Get("yaml")] = s
	}
	return map[string]any{"type": "object", "additionalProperties": false, "properties": properties}
}

func leafOf(t *testing.T, typ reflect.Type, tag reflect.StructTag, docs map[string]string) map[string]any {
	s := map[string]any{}
	switch {
	case typ == reflect.TypeFor[Duration]():
		s["type"], s["pattern"], s["examples"] = "string", `^([0-9.]+(ns|us|µs|ms|s|m|h))+$`, []string{time.Minute.String()}
		return s
	case typ == reflect.TypeFor[Size]():
		s["type"], s["pattern"], s["examples"] = "string", `^[0-9]+ *([KMGT]i?)?B$`, []string{"2GiB"}
		return s
	case typ == reflect.TypeFor[Count]():
		return map[string]any{"anyOf": []any{map[string]any{"type": "integer", "minimum": 1, "maximum": maxCount}, map[string]any{"const": "auto"}}}
	case typ.Kind() == reflect.Struct:
		return schemaOf(t, typ, reflect.Zero(typ), docs)
	case typ.Kind() == reflect.Map: // the plugin's own schema says more
		return map[string]any{"type": "object"}
	case typ.Kind() == reflect.Slice:
		s["type"], s["items"] = "array", leafOf(t, typ.Elem(), tag, docs)
		return s
	case typ.Kind() == reflect.String:
		s["type"] = "string"
		if enum := tag.Get("enum"); enum != "" {
			words := []any{}
			for _, w := range strings.Split(enum, "|") {
				words = append(words, w)
				if w == "true" || w == "false" {
					words = append(words, w == "true")
					delete(s, "type")
				}
			}
			s["enum"] = words
		}
		return s
	case typ.Kind() == reflect.Uint64:
		s["type"], s["minimum"] = "integer", 0
	case typ.Kind() == reflect.Int:
		s["type"] = "integer"
	case typ.Kind() == reflect.Float64:
		s["type"] = "number"
	default:
		t.Fatalf("no schema for %s", typ)
	}
	for key, word := range map[string]string{"min": "minimum", "max": "maximum"} {
		if x := tag.Get(key); x != "" {
			s[word] = json.Number(x)
		}
	}
	return s
}
