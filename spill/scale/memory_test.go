package scale

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestMemoryOfThisMachine(t *testing.T) {
	available, total, err := Memory()
	if err != nil || available <= 0 || total < available {
		t.Errorf("%d of %d bytes are available: %v", available, total, err)
	}
	if free, err := Free(t.TempDir())(); err != nil || free <= 0 {
		t.Errorf("%d bytes are free: %v", free, err)
	}
	if _, err := Free(filepath.Join(t.TempDir(), "none"))(); err == nil || !strings.Contains(err.Error(), "none") {
		t.Errorf("of no directory: %v", err)
	}
}

// TestUsesOfGroup: pages of files are not counted, as they give way.
func TestUsesOfGroup(t *testing.T) {
	for name, c := range map[string]struct {
		current, stat string
		v1            bool
		want          int64
		err           string
	}{
		"v2":       {"1000\n", "anon 300\nfile 700\ninactive_file 400\nactive_file 250\nslab 9\n", false, 350, ""},
		"v1":       {"1000\n", "active_file 1\ntotal_inactive_file 400\ntotal_active_file 250\n", true, 350, ""},
		"at once":  {"100\n", "inactive_file 400\n", false, 0, ""}, // the two files are not of one time
		"no usage": {"max\n", "", false, 0, "memory.current"},
		"no stat":  {"100\n", "inactive_file much\n", false, 0, "memory.stat"},
	} {
		dir := t.TempDir()
		file := "memory.current"
		if c.v1 {
			file = "memory.usage_in_bytes"
		}
		for name, text := range map[string]string{file: c.current, "memory.stat": c.stat} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		got, err := usesOf(dir, c.v1)
		if c.err == "" && (err != nil || got != c.want) || c.err != "" &&
			(err == nil || !strings.Contains(err.Error(), c.err)) {
			t.Errorf("%s: %d, %v, want %d, %q", name, got, err, c.want, c.err)
		}
	}
	if _, err := usesOf(t.TempDir(), false); !os.IsNotExist(err) {
		t.Errorf("of no group: %v", err)
	}
}
