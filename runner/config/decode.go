package config

import (
	"encoding"
	"fmt"
	"reflect"
	"strings"

	"github.com/goccy/go-yaml/ast"
)

// decoder fills a Config from a syntax tree and collects every problem.
type decoder struct {
	file     string
	at       places
	problems Problems
}

// add records a problem at a node.
func (d *decoder) add(n ast.Node, path, hint, format string, a ...any) {
	d.problems = append(d.problems, Problem{Place: placeOf(d.file, n), Path: path, Hint: hint, Message: fmt.Sprintf(format, a...)})
}

// value decodes one node into v. field carries the rules of v.
func (d *decoder) value(n ast.Node, v reflect.Value, path string, field reflect.StructTag) {
	d.at[path] = placeOf(d.file, n)
	switch n.(type) {
	case *ast.AnchorNode, *ast.AliasNode, *ast.MergeKeyNode, *ast.TagNode:
		d.add(n, path, "write the value itself", "want a plain value, got a YAML anchor, alias or tag")
		return
	}
	if u, ok := v.Addr().Interface().(encoding.TextUnmarshaler); ok {
		d.united(n, v, u, path, field)
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		d.section(n, v, path)
	case reflect.Slice:
		d.list(n, v, path, field)
	case reflect.Map:
		d.free(n, v, path)
	default:
		d.scalar(n, v, path, field)
	}
}

// pairs gives the entries of a mapping; ok is false where it is none.
func (d *decoder) pairs(n ast.Node, path string) (pairs []*ast.MappingValueNode, ok bool) {
	switch m := n.(type) {
	case *ast.MappingNode:
		return m.Values, true
	case *ast.MappingValueNode:
		return []*ast.MappingValueNode{m}, true
	case *ast.NullNode:
		d.add(n, path, "give it keys, or remove it", "want a section with keys, got nothing")
	default:
		d.add(n, path, "", "want a section with keys, got %s", describe(n))
	}
	return nil, false
}

// section decodes a mapping into a struct.
func (d *decoder) section(n ast.Node, v reflect.Value, path string) {
	pairs, ok := d.pairs(n, path)
	if !ok {
		return
	}
	for _, pair := range pairs {
		key := keyText(pair.Key)
		f, ok := fieldOf(v.Type(), key)
		if !ok {
			d.add(pair.Key, join(path, clip(key)), hintFor(key, v.Type()), "unknown key")
			continue
		}
		if pair.Value == nil || pair.Value.Type() == ast.NullType {
			d.add(pair.Key, join(path, key), "give it a value, or remove the line", "want %s, got nothing", wanted(f))
			continue
		}
		d.value(pair.Value, v.FieldByIndex(f.Index), join(path, key), f.Tag)
		d.at[join(path, key)] = valuePlace(d.file, pair)
	}
}

// valuePlace is the key for a section, the value for anything else.
func valuePlace(file string, pair *ast.MappingValueNode) Place {
	switch pair.Value.(type) {
	case *ast.MappingNode, *ast.MappingValueNode:
		return placeOf(file, pair.Key)
	}
	return placeOf(file, pair.Value)
}

// list decodes a sequence; the rules hold for each element.
func (d *decoder) list(n ast.Node, v reflect.Value, path string, field reflect.StructTag) {
	s, ok := n.(*ast.SequenceNode)
	if !ok {
		d.add(n, path, fmt.Sprintf("write [%s]", clip(n.String())), "want a list, got %s", describe(n))
		return
	}
	out := reflect.MakeSlice(v.Type(), len(s.Values), len(s.Values))
	for i, e := range s.Values {
		if e == nil {
			d.add(n, fmt.Sprintf("%s[%d]", path, i), "", "want a value, got nothing")
			continue
		}
		d.value(e, out.Index(i), fmt.Sprintf("%s[%d]", path, i), field)
	}
	v.Set(out)
}

// keyText gives a key as it was written.
func keyText(k ast.MapKeyNode) string {
	if s, ok := k.(*ast.StringNode); ok {
		return s.Value
	}
	return k.String()
}

// fieldOf finds a struct's field by its key.
func fieldOf(t reflect.Type, key string) (reflect.StructField, bool) {
	for i := range t.NumField() {
		if f := t.Field(i); f.IsExported() && f.Tag.Get("yaml") == key {
			return f, true
		}
	}
	return reflect.StructField{}, false
}

// keysOf lists a struct's keys in order.
func keysOf(t reflect.Type) (keys []string) {
	for i := range t.NumField() {
		if f := t.Field(i); f.IsExported() {
			keys = append(keys, f.Tag.Get("yaml"))
		}
	}
	return keys
}

// hintFor says what a mistyped key of a section may have meant.
func hintFor(key string, t reflect.Type) string {
	if near := suggest(key, keysOf(t)); near != "" {
		return fmt.Sprintf("did you mean %q?", near)
	}
	for i := range reflect.TypeFor[Config]().NumField() { // right key, wrong section
		section := reflect.TypeFor[Config]().Field(i)
		if section.Type.Kind() != reflect.Struct || section.Type == t {
			continue
		}
		if _, ok := fieldOf(section.Type, key); ok && section.IsExported() {
			return fmt.Sprintf("%q belongs under %q", key, section.Tag.Get("yaml"))
		}
	}
	return "known keys: " + strings.Join(keysOf(t), ", ")
}

// join appends a key to a path.
func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}
