package runner_test

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"strings"
	"testing"
)

const module = "github.com/dflash-runner/dflash-runner/"

// pure packages see the standard library and each other alone.
var pure = map[string]bool{"runner": true, "runner/rows": true, "runner/life": true, "runner/gate": true,
	"runner/lease": true, "runner/step": true, "runner/hang": true, "runner/core": true, "runner/placement": true, "runner/simulate": true, "runner/pace": true}

// rules say who may not import what, and why. Both sides are matched by prefix;
// a rule's exceptions are written out.
var rules = []struct {
	imports string // what must not be imported (prefix)
	except  []string
	why     string
}{
	{"github.com/hashicorp/go-plugin", []string{"plugins/"}, "only plugins/* speaks go-plugin"},
	{"google.golang.org/grpc", []string{"plugins/", "proto/"}, "only plugins/* speaks gRPC"},
	{module + "runner/drive", []string{"cmd/internal/up"}, "only up wires the loop"},
	{module + "runner/core", []string{"runner/drive", "cmd/internal/up"}, "data flows one way: core <- drive"},
	{module + "plugins", []string{"plugins/", "cmd/internal/up", "cmd/internal/jobs", "cmd/internal/bench", "cmd/internal/skeleton", "cmd/dflash-runner", "cmd/e2e"}, "the runner never sees a plugin"},
	{module + "cmd", []string{"cmd/"}, "nothing imports commands"},
}

type listed struct {
	ImportPath  string
	Standard    bool
	Imports     []string
	TestImports []string
}

func packages(t *testing.T) []listed {
	t.Helper()
	out, err := exec.Command("go", "list", "-json=ImportPath,Standard,Imports,TestImports", module+"...").Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			t.Fatalf("go list: %s", exit.Stderr)
		}
		t.Fatal(err)
	}
	var all []listed
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p listed
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
}

// breaks gives the reason why a package of ours must not import another, or "".
func breaks(importer, imported string) string {
	std := !strings.Contains(strings.SplitN(imported, "/", 2)[0], ".")
	if pure[importer] && !std && !pure[strings.TrimPrefix(imported, module)] {
		return "a pure package sees the standard library and pure packages alone"
	}
next:
	for _, r := range rules {
		if imported != strings.TrimSuffix(r.imports, "/") && !strings.HasPrefix(imported, r.imports+"/") {
			continue
		}
		for _, e := range append(r.except, strings.TrimPrefix(r.imports, module)) {
			if strings.HasPrefix(importer+"/", strings.TrimSuffix(e, "/")+"/") {
				continue next
			}
		}
		return r.why
	}
	return ""
}

func TestImportRules(t *testing.T) {
	n := 0
	for _, p := range packages(t) {
		importer := strings.TrimPrefix(p.ImportPath, module)
		for _, imported := range p.Imports {
			if why := breaks(importer, imported); why != "" {
				t.Errorf("%s imports %s: %s", importer, imported, why)
			}
		}
		n++
	}
	if n < 5 {
		t.Fatalf("go list found %d packages, want the whole module", n)
	}
}

func TestImportRulesRefuse(t *testing.T) {
	for _, c := range []struct {
		importer, imported string
		refused            bool
	}{
		{"runner/core", "fmt", false},
		{"runner/core", module + "runner/rows", false},
		{"runner/core", module + "runner/lane", true},         // pure sees no edge
		{"runner/rows", "golang.org/x/sys/unix", true},        // pure sees no other module
		{"runner/lane", module + "runner/core", true},         // an edge sees no decision
		{"runner/lane", "google.golang.org/grpc", true},       // gRPC stays in plugins
		{"plugins/worker", "google.golang.org/grpc", false},   //
		{"cmd/internal/up", module + "runner/drive", false},   // the only place
		{"cmd/dflash-runner", module + "runner/drive", true},  // commands go through up
		{"runner/config", module + "cmd/dflash-runner", true}, //
		{"runner/drive", module + "plugins/worker", true},     // the loop sees interfaces
		{"runner/telemetry", "github.com/hashicorp/go-hclog", false},
	} {
		if got := breaks(c.importer, c.imported); (got != "") != c.refused {
			t.Errorf("%s importing %s: refused %q, want refused %v", c.importer, c.imported, got, c.refused)
		}
	}
}
