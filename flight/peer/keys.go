package peer

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"hash"
	"slices"
	"sync"

	"bowstring/schema"
)

// Keys are what the nodes of a cluster know each other by: secrets that they have in common. A node proves with the
// first one that it knows it, and accepts proofs with any. nil is no key. Keys are safe for concurrent use.
type Keys struct {
	mu   sync.Mutex
	list []*key // guarded by mu; what it points to never changes
}

// key is one of them.
type key struct {
	secret []byte
	gone   context.Context // ends when it is accepted no longer
	end    context.CancelFunc
}

func newKey(secret []byte) *key {
	k := &key{secret: bytes.Clone(secret)}
	k.gone, k.end = context.WithCancel(context.Background())
	return k
}

// NewKeys returns keys with these secrets.
func NewKeys(secrets ...[]byte) *Keys {
	k := &Keys{}
	k.Set(secrets...)
	return k
}

// Set has these secrets be accepted, and no others: what was proven with one that is no longer among them has ended.
func (k *Keys) Set(secrets ...[]byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	list := make([]*key, len(secrets))
	for i, secret := range secrets {
		at := slices.IndexFunc(k.list, func(old *key) bool { return bytes.Equal(old.secret, secret) })
		if at >= 0 {
			list[i] = k.list[at]
			continue
		}
		list[i] = newKey(secret)
	}
	for _, old := range k.list {
		if !slices.Contains(list, old) {
			old.end()
		}
	}
	k.list = list
}

// Any reports whether there is a key.
func (k *Keys) Any() bool { return len(k.all()) > 0 }

func (k *Keys) all() []*key {
	if k == nil {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.list
}

// Known is the key that another node has proven to know. The zero Known is none.
type Known struct{ key *key }

// Ends calls f when the key is accepted no longer, once. stop has it not be called.
func (k Known) Ends(f func()) (stop func() bool) {
	if k.key == nil {
		return func() bool { return true }
	}
	return context.AfterFunc(k.key.gone, f)
}

// side is a side of a call. What one has proven, the other one cannot say again as its own.
type side string

const (
	asking    side = "bowstring peers: the asking node"
	answering side = "bowstring peers: the answering node"
)

const (
	nonceBytes = 32
	proofBytes = sha256.Size
)

func newNonce() []byte {
	b := make([]byte, nonceBytes)
	_, _ = rand.Read(b) // never fails
	return b
}

// said is what two nodes have said to each other: a hash of the method that is called, of the connection, and of the
// messages as they were sent.
type said struct{ hash hash.Hash }

func newSaid(method string, binding []byte) said {
	s := said{sha256.New()}
	s.add([]byte(method))
	s.add(binding)
	return s
}

// add adds a message. Its length stands before it, so that messages are the same only one by one.
func (s said) add(message []byte) {
	var length [8]byte
	binary.LittleEndian.PutUint64(length[:], uint64(len(message)))
	_, _ = s.hash.Write(length[:]) // neither fails
	_, _ = s.hash.Write(message)
}

// prove shows that a side knows a secret, without telling it, for what was said so far.
func (s said) prove(by side, secret []byte) []byte {
	mac := hmac.New(sha256.New, secret)
	_, _ = mac.Write([]byte(by)) // neither fails
	_, _ = mac.Write(s.hash.Sum(nil))
	return mac.Sum(nil)
}

// proven returns which of the keys a side has proven to know. All are looked at, and each in the same time whatever the
// proof is.
func (s said) proven(by side, keys []*key, proof []byte) (known Known, ok bool) {
	for _, k := range keys {
		if hmac.Equal(s.prove(by, k.secret), proof) {
			known, ok = Known{k}, true
		}
	}
	return known, ok
}

// Binding is what tells a TLS connection from all others, on both of its sides: RFC 9266. nil stands for a connection
// without TLS.
func Binding(state tls.ConnectionState) ([]byte, error) {
	b, err := state.ExportKeyingMaterial("EXPORTER-bowstring-peers", nil, sha256.Size)
	if err != nil {
		return nil, fmt.Errorf("what the TLS connection is told from others by: %w", err)
	}
	return b, nil
}

const (
	// leastKey is how many characters a cluster's key has at least.
	leastKey = 32
	// mostKeys is how many there may be at once: the present one, and the one before it or after it.
	mostKeys = 2
)

// ParseKeys reads a file of keys, one a line. An error says nothing of what they are.
func ParseKeys(file string, text []byte) (*[][]byte, error) {
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
