package peer

import (
	"bytes"
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash"
	"slices"
	"sync"

	"bowstring/schema"
)

// Two nodes meet before one asks the other for anything. Neither sends the common key:
// each proves that it knows the key, by a MAC over all messages so far, the method, and
// the TLS connection. Each message has a random number, so that it cannot be replayed. A
// stranger gets a random number and nothing else:
//
//	asking     Hello: names, the address that was dialled, protocols, a number
//	answering  challenge: the protocol, a number
//	asking     KindProof and a MAC, if there is a key
//	answering  a MAC, if there is a key; and a Hello: names
//
// The answering side checks the name and the address that the asking side wants. So it
// detects a program that relays messages from another address, without TLS as well. Only
// TLS protects against a program on the path between the two addresses.

// Hello is a node's description of itself, as JSON. A node skips fields that it does not
// know.
type Hello struct {
	// Cluster is the cluster's name. Nodes of different clusters do not read from each
	// other. "" matches any.
	Cluster string `json:"cluster,omitempty"`
	Node    string `json:"node"`
	Zone    string `json:"zone,omitempty"` // zone of the asking side
	// Protocols are those that the asking side supports. In an answer it is the one that is
	// used.
	Protocols []int `json:"protocols"`
	// Other is the name of the node that is meant, and Address the HOST:PORT that was
	// dialled. "" matches any.
	Other   string `json:"other,omitempty"`
	Address string `json:"address,omitempty"`
	// Nonce is a random number. It is absent without a key.
	Nonce []byte `json:"nonce,omitempty"`
	// Seals requests that blobs without a hash are sealed. In an answer it confirms that
	// they will be: see [Sealer].
	Seals bool `json:"seals,omitempty"`
}

// challenge is the first message of the answering side.
type challenge struct {
	Protocols []int  `json:"protocols"`
	Nonce     []byte `json:"nonce,omitempty"`
}

// Way is the path between two nodes during their handshake.
type Way struct {
	Method  string // the full name of the called method
	Binding []byte // see [Binding]
	Receive func() ([]byte, error)
	Send    func([]byte) error
}

// Guest is the asking side of a handshake.
type Guest struct {
	Hello Hello // without Nonce and Protocols
	Keys  *Keys
	// Protocol is the only protocol version to use; 0 for [Protocol].
	Protocol int
}

// Meet authenticates the other side, and this side to it. Errors are schema.ErrUnavailable,
// or those of the way.
func (g *Guest) Meet(w Way) (other Hello, known Known, err error) {
	refuse := func(why string, args ...any) (Hello, Known, error) {
		return Hello{}, Known{}, fmt.Errorf("%w: %w", schema.ErrUnavailable, fmt.Errorf(why, args...))
	}
	// Every message is added to talk before the next proof. A proof thus covers all that
	// was said, and a changed message makes it wrong.
	keys, talk := g.Keys.all(), newSaid(w.Method, w.Binding)
	hello := g.Hello
	hello.Protocols = spoken(g.Protocol)
	if len(keys) > 0 {
		hello.Nonce = newNonce()
		hello.Seals = w.Binding == nil
	}
	first, err := json.Marshal(hello)
	if err != nil {
		return refuse("encoding a hello: %w", err)
	}
	if err := w.Send(first); err != nil {
		return Hello{}, Known{}, err
	}
	talk.add(first)
	answer, err := w.Receive()
	if err != nil {
		return Hello{}, Known{}, err
	}
	talk.add(answer)
	var c challenge
	err = json.Unmarshal(answer, &c)
	switch {
	case err != nil || agree(g.Protocol, c.Protocols) == 0:
		return refuse("it speaks protocols %v; want one of %v", c.Protocols, spoken(g.Protocol))
	case len(keys) > 0 && len(c.Nonce) != nonceBytes:
		return refuse("it does not know the cluster's key: it wants no proof of it")
	case len(keys) == 0 && len(c.Nonce) > 0:
		return refuse("it wants the cluster's key to be proven, and this node has none")
	}
	if len(keys) > 0 {
		proof := append([]byte{KindProof}, talk.prove(asking, keys[0].secret)...)
		if err := w.Send(proof); err != nil {
			return Hello{}, Known{}, err
		}
		talk.add(proof)
	}
	last, err := w.Receive()
	if err != nil {
		return Hello{}, Known{}, err
	}
	if len(keys) > 0 {
		if len(last) < proofBytes {
			return refuse("it has not proven that it knows the cluster's key")
		}
		proof := last[:proofBytes]
		last = last[proofBytes:]
		talk.add(last)
		var ok bool
		if known, ok = talk.proven(answering, keys, proof); !ok {
			return refuse("it has not proven that it knows the cluster's key")
		}
	}
	if err := json.Unmarshal(last, &other); err != nil || agree(g.Protocol, other.Protocols) == 0 {
		return refuse("it speaks protocols %v; want one of %v", other.Protocols, spoken(g.Protocol))
	}
	if hello.Seals && other.Seals {
		known.sealer = newSealer(keys[0].secret)
	}
	return other, known, g.Hello.check(other)
}

// check returns an error if the other side is not the expected node. Addresses are reused,
// and by other machines.
func (h *Hello) check(other Hello) error {
	if h.Cluster != "" && other.Cluster != "" && other.Cluster != h.Cluster {
		return fmt.Errorf("%w: it is of cluster %s; want %s", schema.ErrUnavailable, schema.Quote(other.Cluster),
			h.Cluster)
	}
	if h.Other != "" && other.Node != h.Other {
		return fmt.Errorf("%w: it is node %s; want %s", schema.ErrUnavailable, schema.Quote(other.Node), h.Other)
	}
	return nil
}

// Host is the answering side of a handshake.
type Host struct {
	Cluster, Node string
	Address       string // HOST:PORT at which others reach it; "" if unknown
	Keys          *Keys
	// Protocol is the only protocol version to use; 0 for [Protocol].
	Protocol int
	// Refuse gets the reason for a refusal and returns the error for the other node. It can
	// limit the rate of attempts.
	Refuse func(why string) error
}

// Meet authenticates a node that asks, and this node to it. The node must prove that it
// knows the key before this side proves anything.
func (h *Host) Meet(w Way) (hello Hello, known Known, err error) {
	fail := func(err error) (Hello, Known, error) { return Hello{}, Known{}, err }
	keys, talk := h.Keys.all(), newSaid(w.Method, w.Binding)
	first, err := w.Receive()
	if err != nil {
		return fail(err)
	}
	if len(first) > MaxHello || json.Unmarshal(first, &hello) != nil { // the sender is not authenticated: check the length first
		return fail(&schema.FieldError{Field: "hello", Got: schema.Quote(string(first)),
			Want: "a node's name and protocols as JSON"})
	}
	protocol := agree(h.Protocol, hello.Protocols)
	if protocol == 0 {
		return fail(&schema.FieldError{Field: "protocols", Got: fmt.Sprint(hello.Protocols),
			Want: fmt.Sprintf("one of %v among them", spoken(h.Protocol))})
	}
	talk.add(first)
	c := challenge{Protocols: []int{protocol}}
	if len(keys) > 0 {
		if len(hello.Nonce) != nonceBytes {
			return fail(h.Refuse("a node proves that it knows the cluster's key"))
		}
		c.Nonce = newNonce()
	}
	b, err := json.Marshal(c)
	if err != nil {
		return fail(fmt.Errorf("encoding a challenge: %w", err))
	}
	if err := w.Send(b); err != nil {
		return fail(err)
	}
	talk.add(b)
	if len(keys) > 0 {
		proof, err := w.Receive()
		if err != nil {
			return fail(err)
		}
		var ok bool
		if len(proof) == 1+proofBytes && proof[0] == KindProof {
			known, ok = talk.proven(asking, keys, proof[1:])
		}
		if !ok {
			return fail(h.Refuse("the node has not proven that it knows the cluster's key"))
		}
		talk.add(proof)
	}
	if err := h.check(hello); err != nil {
		return fail(err)
	}
	if known.key != nil && hello.Seals {
		known.sealer = newSealer(known.key.secret)
	}
	b, err = json.Marshal(Hello{Cluster: h.Cluster, Node: h.Node, Protocols: []int{protocol},
		Seals: known.sealer != nil})
	if err != nil {
		return fail(fmt.Errorf("encoding a hello: %w", err))
	}
	if len(keys) > 0 {
		talk.add(b)
		b = append(talk.prove(answering, keys[0].secret), b...)
	}
	return hello, known, w.Send(b)
}

// check returns an error if the asking node expects another one.
func (h *Host) check(hello Hello) error {
	for _, f := range []struct{ field, got, want string }{
		{"cluster", hello.Cluster, h.Cluster}, {"other", hello.Other, h.Node}, {"address", hello.Address, h.Address},
	} {
		if f.got != "" && f.want != "" && f.got != f.want {
			return &schema.FieldError{Field: f.field, Got: schema.Quote(f.got), Want: f.want + ", which this node has"}
		}
	}
	return nil
}

// spoken returns the supported protocol version: only, if it is set, or else that of this
// program.
func spoken(only int) []int { return []int{cmp.Or(only, Protocol)} }

// agree returns the supported protocol version if it is among theirs, and 0 otherwise.
func agree(only int, theirs []int) int {
	if p := spoken(only)[0]; slices.Contains(theirs, p) {
		return p
	}
	return 0
}

// Keys are the secrets that the nodes of a cluster share. A node proves that it knows the
// first one, and accepts proofs with any of them. A key can thus be replaced node by node.
// nil means no key. Keys are safe for concurrent use.
type Keys struct {
	mu   sync.Mutex
	list []*key // guarded by mu; what it points to never changes
}

// key is one secret.
type key struct {
	secret []byte
	gone   context.Context // ends when the key is no longer accepted
	end    context.CancelFunc
}

// newKey copies the secret.
func newKey(secret []byte) *key {
	k := &key{secret: bytes.Clone(secret)}
	k.gone, k.end = context.WithCancel(context.Background())
	return k
}

// NewKeys returns Keys with these secrets, the one to prove first.
func NewKeys(secrets ...[]byte) *Keys {
	k := &Keys{}
	k.Set(secrets...)
	return k
}

// Set replaces the accepted secrets. Calls that were authenticated with a removed one end.
// A secret that remains keeps its calls.
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

// all returns the current keys. The list is never changed, only replaced.
func (k *Keys) all() []*key {
	if k == nil {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.list
}

// Known is the key that another node has proven to know. The zero Known means none.
type Known struct {
	key    *key
	sealer *Sealer
}

// Sealer returns the sealer for the call's blobs without a hash, nil if they are not
// sealed.
func (k Known) Sealer() *Sealer { return k.sealer }

// Ends calls f once, when the key is no longer accepted. stop prevents that.
func (k Known) Ends(f func()) (stop func() bool) {
	if k.key == nil {
		return func() bool { return true }
	}
	return context.AfterFunc(k.key.gone, f)
}

// side names a side of a call in its proofs. One side's proof is therefore useless as a
// proof of the other side.
type side string

const (
	asking    side = "bowstring peers: the asking node"
	answering side = "bowstring peers: the answering node"
)

const (
	// 32 random bytes never repeat in practice.
	nonceBytes = 32
	proofBytes = sha256.Size
)

// newNonce returns nonceBytes random bytes.
func newNonce() []byte {
	b := make([]byte, nonceBytes)
	_, _ = rand.Read(b) // never fails
	return b
}

// said is a hash of a handshake so far: the method, the connection, and the messages as
// they were sent.
type said struct{ hash hash.Hash }

// newSaid returns the hash before the first message.
func newSaid(method string, binding []byte) said {
	s := said{sha256.New()}
	s.add([]byte(method))
	s.add(binding)
	return s
}

// add adds a message with its length before it. Without the length, bytes could move from
// one message to the next unnoticed.
func (s said) add(message []byte) {
	var length [8]byte
	binary.LittleEndian.PutUint64(length[:], uint64(len(message)))
	_, _ = s.hash.Write(length[:]) // neither fails
	_, _ = s.hash.Write(message)
}

// prove returns the proof that a side knows a secret, for all messages so far. It does not
// reveal the secret.
func (s said) prove(by side, secret []byte) []byte {
	mac := hmac.New(sha256.New, secret)
	_, _ = mac.Write([]byte(by)) // neither fails
	_, _ = mac.Write(s.hash.Sum(nil))
	return mac.Sum(nil)
}

// proven returns the key that a side has proven to know. It tries all keys in constant time
// each, so the duration reveals nothing about them.
func (s said) proven(by side, keys []*key, proof []byte) (known Known, ok bool) {
	for _, k := range keys {
		if hmac.Equal(s.prove(by, k.secret), proof) {
			known, ok = Known{key: k}, true
		}
	}
	return known, ok
}

// Binding returns a value that identifies a TLS connection and is the same on both sides
// (RFC 9266).
func Binding(state tls.ConnectionState) ([]byte, error) {
	b, err := state.ExportKeyingMaterial("EXPORTER-bowstring-peers", nil, sha256.Size)
	if err != nil {
		return nil, fmt.Errorf("the binding of the TLS connection: %w", err)
	}
	return b, nil
}

const (
	// leastKey is the shortest key in characters: 128 bits as hexadecimal digits.
	leastKey = 32
	// mostKeys bounds the keys at one time: the current one, and its predecessor or
	// successor.
	mostKeys = 2
)

// ParseKeys reads a file of keys, one a line. Errors never quote a key.
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
