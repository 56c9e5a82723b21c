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

// Hello is what a node says of itself, as JSON. A node skips fields that it does not
// know.
type Hello struct {
	// Cluster is the cluster's name. Nodes of different clusters do not read from each other; "" is any.
	Cluster string `json:"cluster,omitempty"`
	Node    string `json:"node"`
	Zone    string `json:"zone,omitempty"` // where the asking side is
	// Protocols are those that the asking side speaks, and the one of them that it is to be.
	Protocols []int `json:"protocols"`
	// Other and Address are the name of the node that is asked, and HOST:PORT where it was dialled; "" is any.
	Other   string `json:"other,omitempty"`
	Address string `json:"address,omitempty"`
	// Nonce is a random number, none where there is no key.
	Nonce []byte `json:"nonce,omitempty"`
	// Seals says that blobs without a hash are to be sealed, or that they will be: see [Sealer].
	Seals bool `json:"seals,omitempty"`
}

// challenge is the first that the answering side says.
type challenge struct {
	Protocols []int  `json:"protocols"`
	Nonce     []byte `json:"nonce,omitempty"`
}

// Way is how two nodes that meet reach each other.
type Way struct {
	Method  string // that is called, in full
	Binding []byte // see [Binding]
	Receive func() ([]byte, error)
	Send    func([]byte) error
}

// Guest is the asking side.
type Guest struct {
	Hello Hello // except the number and the protocols
	Keys  *Keys
	// Protocol is the only one that is spoken; 0 for [Protocol].
	Protocol int
}

// Meet gets to know the other side, and is known by it. Any error is a schema.ErrUnavailable, or the way's.
func (g *Guest) Meet(w Way) (other Hello, known Known, err error) {
	refuse := func(why string, args ...any) (Hello, Known, error) {
		return Hello{}, Known{}, fmt.Errorf("%w: %w", schema.ErrUnavailable, fmt.Errorf(why, args...))
	}
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

// check returns an error if it is not the node that is to be there: addresses are used again, by other machines.
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

// Host is the answering side.
type Host struct {
	Cluster, Node string
	Address       string // HOST:PORT by which others reach it; "" if that is not known
	Keys          *Keys
	// Protocol is the only one that is spoken; 0 for [Protocol].
	Protocol int
	// Refuse gets the reason for which a node is refused, and returns the node's answer.
	Refuse func(why string) error
}

// Meet gets to know a node that asks, and is known by it.
func (h *Host) Meet(w Way) (hello Hello, known Known, err error) {
	fail := func(err error) (Hello, Known, error) { return Hello{}, Known{}, err }
	keys, talk := h.Keys.all(), newSaid(w.Method, w.Binding)
	first, err := w.Receive()
	if err != nil {
		return fail(err)
	}
	if len(first) > MaxHello || json.Unmarshal(first, &hello) != nil { // a stranger says it: the length is first
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

// check returns an error if the node looks for another one.
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

// spoken is the protocol that is spoken: only, if a node is held to one, and else that of this program.
func spoken(only int) []int { return []int{cmp.Or(only, Protocol)} }

// agree returns the protocol that is spoken here, see spoken, if it is among those; 0 if it is not.
func agree(only int, theirs []int) int {
	if p := spoken(only)[0]; slices.Contains(theirs, p) {
		return p
	}
	return 0
}

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
type Known struct {
	key    *key
	sealer *Sealer
}

// Sealer seals the blobs of the call that have no hash; nil if they are not sealed.
func (k Known) Sealer() *Sealer { return k.sealer }

// Ends calls f when the key is accepted no longer, once. stop has it not be called.
func (k Known) Ends(f func()) (stop func() bool) {
	if k.key == nil {
		return func() bool { return true }
	}
	return context.AfterFunc(k.key.gone, f)
}

// side is a side of a call. The proof of one side cannot be returned by the other as its
// own.
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

// prove shows that a side knows a secret, without revealing it, for all messages so far.
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
			known, ok = Known{key: k}, true
		}
	}
	return known, ok
}

// Binding identifies a TLS connection on both of its sides (RFC 9266).
func Binding(state tls.ConnectionState) ([]byte, error) {
	b, err := state.ExportKeyingMaterial("EXPORTER-bowstring-peers", nil, sha256.Size)
	if err != nil {
		return nil, fmt.Errorf("the binding of the TLS connection: %w", err)
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
