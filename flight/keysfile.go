package flight

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"

	"bowstring/flight/auth"
	"bowstring/flight/peer"
	"bowstring/schema"
)

const (
	// leastKey is how many characters a cluster's key has at least.
	leastKey = 32
	// mostKeys is how many there may be at once: the present one, and the one before it or after it.
	mostKeys = 2
)

// KeysFile is the file of a cluster's keys, one a line. It is read again when it changes.
type KeysFile struct {
	file watchedFile[[][]byte]
	keys *peer.Keys
}

// OpenKeys reads a file of keys, which must be right.
func OpenKeys(path string, sources *auth.Sources, log *slog.Logger) (*KeysFile, error) {
	f := &KeysFile{file: watchedFile[[][]byte]{what: "keys of the cluster", path: path, log: log, parse: parseKeys,
		size: func(keys *[][]byte) int { return len(*keys) }}}
	if err := f.file.open(sources); err != nil {
		return nil, err
	}
	f.keys = peer.NewKeys(*f.file.current.Load()...)
	return f, nil
}

// parseKeys reads keys. An error says nothing of what they are.
func parseKeys(file string, text []byte) (*[][]byte, error) {
	var keys [][]byte
	for line := range bytes.Lines(text) {
		key := bytes.TrimSpace(line)
		switch {
		case len(key) == 0:
			continue
		case len(key) < leastKey:
			return nil, fmt.Errorf("%w: %s has a key of %d characters; want %d or more, such as openssl rand -hex 32 "+
				"makes", schema.ErrInvalid, file, len(key), leastKey)
		case len(keys) == mostKeys:
			return nil, fmt.Errorf("%w: %s has more than %d keys; want one a line, the one that this node proves with "+
				"first", schema.ErrInvalid, file, mostKeys)
		}
		keys = append(keys, bytes.Clone(key))
	}
	if len(keys) == 0 {
		return nil, fmt.Errorf("%w: %s has no key; want one of %d characters or more, such as openssl rand -hex 32 "+
			"makes", schema.ErrInvalid, file, leastKey)
	}
	return &keys, nil
}

// Keys returns the keys, which change as the file does.
func (f *KeysFile) Keys() *peer.Keys { return f.keys }

// Watch looks at the file every second until ctx ends.
func (f *KeysFile) Watch(ctx context.Context) { f.file.Watch(ctx, f.exchange) }

func (f *KeysFile) exchange() { f.keys.Set(*f.file.current.Load()...) }
