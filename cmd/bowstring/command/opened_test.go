package command

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Without --server, top looks at the server that bowstring.open has started, if there is exactly one.
func TestTopOfOpened(t *testing.T) {
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	cache := t.TempDir()
	home := func(name string) string {
		t.Helper()
		dir := filepath.Join(cache, "open", host, name)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	top := func(args ...string) string {
		t.Helper()
		cmd := exec.Command("bowstring", append([]string{"top", "--once", "--interval", "100ms"}, args...)...)
		cmd.Env = append(os.Environ(), "BOWSTRING_CACHE="+cache)
		out, _ := cmd.CombinedOutput()
		return string(out)
	}
	if got := top(); !strings.Contains(got, "no server of bowstring.open runs") {
		t.Errorf("without a server: %s", got)
	}
	// A server that was killed has left its file.
	if err := os.WriteFile(filepath.Join(home("killed"), "ready"), []byte("grpc+unix:///nowhere/server\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	// The socket is elsewhere: its path has 103 bytes at most, and a host's name may have 64.
	begin := func(name string) (dir string) {
		t.Helper()
		dir = t.TempDir()
		serveSocket(t, dir)
		text, err := os.ReadFile(filepath.Join(dir, "ready"))
		if err == nil {
			err = os.WriteFile(filepath.Join(home(name), "ready"), text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		return dir
	}
	files := begin("files")
	if got := top(); !strings.Contains(got, "grpc+unix://"+filepath.Join(files, "socket")) || !strings.Contains(got, "LIMIT") {
		t.Errorf("with one server: %s", got)
	}
	buckets := begin("buckets")
	if got := top(); !strings.Contains(got, "several servers") || !strings.Contains(got, filepath.Join(buckets, "socket")) {
		t.Errorf("with two servers: %s", got)
	}
	if got := top("--store", filepath.Join(cache, "store")); !strings.Contains(got, "running server") {
		t.Errorf("with a store: %s", got)
	}
}
