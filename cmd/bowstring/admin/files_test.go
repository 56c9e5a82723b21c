package admin

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A token that is replaced is read again; one that makes no sense leaves the one before.
func TestTokenIsReadAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("the first of two tokens\n")
	f := &file[[]byte]{paths: []string{path}, parse: func() ([]byte, error) {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		return CheckToken([]byte(strings.TrimSpace(string(text))))
	}}
	expect := func(want string) {
		t.Helper()
		f.checked = time.Time{} // it was looked at long ago
		got, err := f.get()
		if err != nil || string(got) != want {
			t.Errorf("token %q, %v; want %q", got, err, want)
		}
	}
	expect("the first of two tokens")
	write("the second, a longer one\n")
	expect("the second, a longer one")
	// Another file may be as long, and as old.
	if err := os.WriteFile(path+".new", []byte("the third, a longer one.\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err == nil {
		err = errors.Join(os.Chtimes(path+".new", info.ModTime(), info.ModTime()), os.Rename(path+".new", path))
	}
	if err != nil {
		t.Fatal(err)
	}
	expect("the third, a longer one.")
	write("short")
	expect("the third, a longer one.")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	expect("the third, a longer one.")
}

// noted is a source of which a test says whether its grace time is over.
type noted struct {
	err  error
	over bool
}

func (n *noted) Note(_ context.Context, err error) { n.err = err }

func (n *noted) Closed() error {
	if n.over {
		return n.err
	}
	return nil
}

// A token that cannot be read holds for the grace time, and no longer.
func TestTokenThatCannotBeReadEnds(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(path, []byte("a token of many letters\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	n := &noted{}
	token, err := LoadToken(path, n)
	if err != nil {
		t.Fatal(err)
	}
	f := &file[[]byte]{paths: []string{path}, noted: n, parse: token}
	if _, err := f.get(); err != nil || n.err != nil {
		t.Fatal(err, n.err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	f.checked = time.Time{} // it was looked at long ago
	if _, err := f.get(); err != nil || n.err == nil {
		t.Errorf("within the grace time: %v; noted is %v", err, n.err)
	}
	n.over = true
	if _, err := f.get(); err == nil {
		t.Error("after the grace time the token holds on")
	}
}

func TestTokenThatCannotBe(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	if _, err := LoadToken(path, nil); err == nil {
		t.Error("a file that is not there has no error")
	}
	if err := os.WriteFile(path, []byte("hunter2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := LoadToken(path, nil)
	if err == nil || strings.Contains(err.Error(), "hunter2") || !strings.Contains(err.Error(), "7 characters") {
		t.Errorf("a short token: %v", err)
	}
}

func TestLoopback(t *testing.T) {
	for addr, want := range map[string]bool{
		"127.0.0.1:80": true, "[::1]:80": true, "localhost": true, "localhost:9": true, "127.9.9.9": true,
		"[::1]":       true,
		"10.0.0.1:80": false, "localhost.evil.example:80": false, "": false, "0.0.0.0:80": false,
	} {
		if got := isLoopback(addr); got != want {
			t.Errorf("%q is loopback: %v, want %v", addr, got, want)
		}
	}
}
