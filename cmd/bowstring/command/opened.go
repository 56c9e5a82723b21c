package command

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"bowstring/schema"
)

// openedAnswer is the time that a server has to accept a connection. It is on this
// machine.
const openedAnswer = time.Second

// openedServer returns the address of the server that bowstring.open has started for this
// user. It is an error if there is none, or if there are several.
//
// The Python package starts such servers, and knows where they are: see bowstring ps. The
// program knows one file of each, to which the server writes its address. Asking the
// package instead would start a Python for each bowstring top.
func openedServer(ctx context.Context) (string, error) {
	found, err := openedServers(ctx)
	if err != nil {
		return "", err
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return "", fmt.Errorf("%w: no server of bowstring.open runs; --server names another one", schema.ErrNotFound)
	default:
		return "", usagef("bowstring.open has started several servers; name one by --server: %s", strings.Join(found, ", "))
	}
}

// openedServers returns the addresses of all such servers that run. A server that was
// killed leaves its file, so each address is tried.
func openedServers(ctx context.Context) ([]string, error) {
	cache := os.Getenv("BOWSTRING_CACHE")
	if cache == "" {
		cache = filepath.Join(xdg("XDG_CACHE_HOME", ".cache"), "bowstring")
	}
	host, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	homes := filepath.Join(cache, "open", host)
	entries, err := os.ReadDir(homes)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("reading the directories of the servers of bowstring.open: %w", err)
	}
	var found []string
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(homes, e.Name(), "ready"))
		if err != nil {
			continue // no server has started there, or it has ended
		}
		path, ok := socketPath(strings.TrimSpace(string(text)))
		if !ok {
			continue
		}
		dialer := net.Dialer{Timeout: openedAnswer}
		if conn, err := dialer.DialContext(ctx, "unix", path); err == nil {
			_ = conn.Close()
			found = append(found, unixScheme+path)
		}
	}
	return found, nil
}
