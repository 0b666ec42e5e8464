package config

import (
	"fmt"
	"reflect"
	"strings"
)

// flagged is the file of what a --set flag says.
func flagged(set string) string { return "--set " + clip(set) }

// override applies one "path=value" of a --set flag. The value is YAML: a list
// is [a, b].
func (d *decoder) override(c *Config, set string) {
	file := flagged(set)
	path, text, ok := strings.Cut(set, "=")
	path = strings.TrimSpace(path)
	if !ok || path == "" {
		d.problems = append(d.problems, Problem{Place: Place{File: file}, Message: "want path=value, such as --set training.steps=100"})
		return
	}
	v, tag, problem := lookup(reflect.ValueOf(c).Elem(), path)
	if problem != nil {
		problem.File = file
		d.problems = append(d.problems, *problem)
		return
	}
	if strings.TrimSpace(text) == "" && v.Kind() == reflect.String && tag.Get("enum") == "" {
		v.SetString("") // --set python.interpreter= takes a default back
		d.at[path] = Place{File: file}
		return
	}
	n, p := parse(file, []byte(text))
	if p != nil {
		p.Line, p.Column, p.Path = 0, 0, path
		if strings.TrimSpace(text) == "" {
			p.Message, p.Hint = "want a value, got nothing", ""
		}
		d.problems = append(d.problems, *p)
		return
	}
	sub := decoder{file: file, at: d.at}
	sub.value(n, v, path, tag)
	for i := range sub.problems {
		sub.problems[i].Line, sub.problems[i].Column = 0, 0
	}
	for k, p := range sub.at { // a line within a flag says nothing
		if p.File == file {
			sub.at[k] = Place{File: file}
		}
	}
	d.problems = append(d.problems, sub.problems...)
}

// lookup walks a dotted path to a field.
func lookup(v reflect.Value, path string) (reflect.Value, reflect.StructTag, *Problem) {
	var tag reflect.StructTag
	walked := ""
	for key := range strings.SplitSeq(path, ".") {
		if v.Kind() != reflect.Struct {
			return v, tag, &Problem{Path: path, Message: fmt.Sprintf("unknown key: %s holds a value, not keys", walked)}
		}
		f, ok := fieldOf(v.Type(), key)
		if !ok {
			return v, tag, &Problem{Path: join(walked, clip(key)), Message: "unknown key", Hint: hintFor(key, v.Type())}
		}
		v, tag, walked = v.FieldByIndex(f.Index), f.Tag, join(walked, key)
	}
	return v, tag, nil
}
