package config

import (
	"reflect"
	"strings"
	"testing"
)

const sum64 = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

// catalog is valid with a plugin; %s is the rest of its entry.
func catalog(use, rest string) string {
	return valid + "scheduler:\n  use: " + use + "\n  required: true\n  plugins:\n    - name: short-first\n      path: bin/short-first\n      sha256: " + sum64 + "\n" + rest
}

func TestSchedulerSection(t *testing.T) {
	c, err := parseAll("f.yaml", []byte(catalog("short-first", "      env: [LANG]\n      config:\n        steps: 40\n        share: 0.5\n        whole: 2.0\n        on: true\n        words: [a, b]\n        name: x\n")), nil)
	if err != nil {
		t.Fatal(err)
	}
	p, i := c.Scheduler.Plugin()
	want := map[string]any{"steps": int64(40), "share": 0.5, "whole": 2.0, "on": true, "words": []any{"a", "b"}, "name": "x"}
	if p == nil || i != 0 || p.Path != "bin/short-first" || !reflect.DeepEqual(p.Config, want) || c.Scheduler.Required != "true" {
		t.Fatalf("got %+v", p)
	}
	if at := c.Place("scheduler.plugins[0].config.share"); !strings.HasPrefix(at, "f.yaml:") || !strings.HasSuffix(at, ":16") {
		t.Errorf("place of a key: %s", at)
	}
	text, err := c.YAML()
	if err != nil {
		t.Fatal(err)
	}
	again, err := parseAll("f.yaml", text, nil)
	if err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	if !reflect.DeepEqual(again.Scheduler.Plugins[0].Config, want) {
		t.Errorf("after a round trip: %+v in\n%s", again.Scheduler.Plugins[0].Config, text)
	}
	if p, _ := Default().Scheduler.Plugin(); p != nil {
		t.Errorf("the default has a plugin: %+v", p)
	}
}

// TestPythonSchedulerIsShort: a script needs a path and a sum; its interpreter
// is the workers', which may be pinned.
func TestPythonSchedulerIsShort(t *testing.T) {
	for _, rest := range []string{"", "      interpreter_sha256: " + sum64 + "\n", "      interpreter_args: [-I]\n"} {
		if _, err := parseAll("f.yaml", []byte(strings.Replace(catalog("short-first", rest), "bin/short-first", "short-first.py", 1)), nil); err != nil {
			t.Errorf("%q: %v", rest, err)
		}
	}
}

func TestSchedulerProblems(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"unknown scheduler", catalog("short-frist", ""), `f.yaml:7:8: scheduler.use: want balanced, fixed, or the name of a plugin in scheduler.plugins, got "short-frist" (did you mean "short-first"?)`},
		{"no sum", strings.Replace(catalog("fixed", ""), sum64, "abc", 1), `f.yaml:12:15: scheduler.plugins[0].sha256: want a sha256 in 64 hex digits, got "abc"`},
		{"unknown key of an entry", catalog("fixed", "      arg: [x]\n"), `f.yaml:13:7: scheduler.plugins[0].arg: unknown key (did you mean "args"?)`},
		{"no path", strings.Replace(catalog("fixed", ""), "bin/short-first", `""`, 1), `scheduler.plugins[0].path: want a file, got nothing`},
		{"twice", catalog("fixed", "    - {name: short-first, path: x, sha256: "+sum64+"}\n"), `f.yaml:13:14: scheduler.plugins[1].name: want each name once`},
		{"the built-in's name", strings.Replace(catalog("fixed", ""), "name: short-first", "name: fixed", 1), `scheduler.plugins[0].name: want each name once`},
		{"interpreter without a sum", catalog("fixed", "      interpreter: /usr/bin/python3\n"), `scheduler.plugins[0].interpreter_sha256: want a sha256`},
		{"a script's interpreter's sum", strings.Replace(catalog("fixed", "      interpreter_sha256: abc\n"), "bin/short-first", "short-first.py", 1), `scheduler.plugins[0].interpreter_sha256: want a sha256 in 64 hex digits, got "abc"`},
		{"a program's interpreter", catalog("fixed", "      interpreter_args: [-I]\n"), `scheduler.plugins[0].interpreter: want a file, got nothing`},
		{"a variable of the handshake", catalog("fixed", "      env: [PLUGIN_CLIENT_CERT]\n"), `f.yaml:13:13: scheduler.plugins[0].env[0]: want the name of a variable`},
		{"nested configuration", catalog("fixed", "      config: {a: {b: 1}}\n"), `scheduler.plugins[0].config.a: want a text, a number, true, false or a list of them, got a section`},
		{"empty key", catalog("fixed", "      config:\n        a:\n"), `f.yaml:14:9: scheduler.plugins[0].config.a: want a value, got nothing`},
		{"backoff", strings.Replace(catalog("fixed", ""), "required: true", "backoff_min: 10m", 1), `scheduler.backoff_max: want at least backoff_min 10m`},
		{"little memory", strings.Replace(catalog("fixed", ""), "required: true", "limits: {memory: 1MiB}", 1), `scheduler.limits.memory: want at least 128MiB, got 1MiB`},
		{"a file without a sum", catalog("fixed", "      files: [{path: lib.py}]\n"), `scheduler.plugins[0].files[0].sha256: want a sha256`},
	} {
		_, err := parseAll("f.yaml", []byte(c.text), nil)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %s", c.name, err, c.want)
		}
	}
}
