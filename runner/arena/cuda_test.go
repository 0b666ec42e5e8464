package arena

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/dflash-runner/dflash-runner/runner"
)

func exported() runner.CreateArena {
	return runner.CreateArena{Arena: 3, Kind: KindCUDA, Slots: 3, SlotBytes: 1 << 20}
}

// TestTakeCUDA: a device's descriptor stands for the driver's, which is one too.
func TestTakeCUDA(t *testing.T) {
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	c, err := TakeCUDA(exported(), f)
	if err != nil {
		t.Fatal(err)
	}
	if c.Kind() != "cuda_vmm" || c.Bytes() != 3<<20 || c.File() != f || c.ReadOnlyFile() != f {
		t.Errorf("got %s of %d bytes", c.Kind(), c.Bytes())
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Stat(); err == nil {
		t.Error("the descriptor is still open")
	}
	if err := c.Close(); err == nil || runner.KindOf(err) != runner.Internal {
		t.Errorf("closed twice: got %v, want kind internal", err)
	}
}

// TestTakeCUDARefuses: each is of kind invalid, and closed.
func TestTakeCUDARefuses(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	open := func(name string) func() *os.File {
		return func() *os.File {
			f, err := os.Open(name)
			if err != nil {
				t.Fatal(err)
			}
			return f
		}
	}
	order := func(f func(*runner.CreateArena)) runner.CreateArena {
		o := exported()
		f(&o)
		return o
	}
	good := exported()
	for name, c := range map[string]struct {
		order runner.CreateArena
		file  func() *os.File
	}{
		"a file":      {good, open(path)},
		"a directory": {good, open(filepath.Dir(path))},
		"a memfd": {good, func() *os.File {
			f, err := Memfd("test", 4096)
			if err != nil {
				t.Fatal(err)
			}
			return f
		}},
		"a pipe": {good, func() *os.File {
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			w.Close()
			return r
		}},
		"a socket": {good, func() *os.File {
			l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(filepath.Dir(path), "s"), Net: "unix"})
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			f, err := l.File()
			if err != nil {
				t.Fatal(err)
			}
			return f
		}},
		"no number":   {order(func(o *runner.CreateArena) { o.Arena = 0 }), open(os.DevNull)},
		"other kind":  {order(func(o *runner.CreateArena) { o.Kind = KindMemfd }), open(os.DevNull)},
		"no slots":    {order(func(o *runner.CreateArena) { o.Slots = 0 }), open(os.DevNull)},
		"not aligned": {order(func(o *runner.CreateArena) { o.SlotBytes = 100 }), open(os.DevNull)},
		"overflow":    {order(func(o *runner.CreateArena) { o.SlotBytes = 1 << 63 }), open(os.DevNull)},
	} {
		f := c.file()
		if got, err := TakeCUDA(c.order, f); err == nil || runner.KindOf(err) != runner.Invalid {
			t.Errorf("%s: got %v, %v, want kind invalid", name, got, err)
		}
		if _, err := f.Stat(); err == nil {
			t.Errorf("%s: the descriptor is still open", name)
		}
	}
}
