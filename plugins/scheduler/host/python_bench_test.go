package host

import "testing"

// BenchmarkPythonCalls is BenchmarkCalls of a Python script.
func BenchmarkPythonCalls(b *testing.B) {
	o := Defaults()
	o.Directory = short(b)
	p, err := Start(b.Context(), script(b, "good", &o), o)
	if err != nil {
		b.Fatal(err)
	}
	defer p.Close()
	calls(b, p)
}
