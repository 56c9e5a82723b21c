package peer

import (
	"encoding/json"
	"fmt"
	"slices"

	"bowstring/schema"
)

// Two nodes meet before one asks the other for anything. Neither tells the key that they have in common: each shows
// that it knows it, by a MAC over all that was said, over the method, and over the TLS connection. What each says has a
// random number in it, so that nothing can be said again. A stranger is told a random number and nothing else:
//
//	asking     Hello: names, the address that was dialled, protocols, a number
//	answering  challenge: the protocol, a number
//	asking     KindProof and a MAC, where there is a key
//	answering  a MAC, where there is a key; and a Hello: names
//
// The answering side looks at the name and the address that the asking side wants: who passes on what others say, from
// another address, is found out, without TLS too. Where somebody is on the way between the two addresses, only TLS
// helps.

// Hello is what a node says of itself, as JSON. What a node does not know of it, it passes over.
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
	Hello Hello // but for the number and the protocols
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
	hello.Protocols = Spoken(g.Protocol)
	if len(keys) > 0 {
		hello.Nonce = newNonce()
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
	case err != nil || Agree(g.Protocol, c.Protocols) == 0:
		return refuse("it speaks protocols %v; want one of %v", c.Protocols, Spoken(g.Protocol))
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
	if err := json.Unmarshal(last, &other); err != nil || Agree(g.Protocol, other.Protocols) == 0 {
		return refuse("it speaks protocols %v; want one of %v", other.Protocols, Spoken(g.Protocol))
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
	// Refuse is told why a node is not let in, and returns what that is told.
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
	if len(first) > maxHello || json.Unmarshal(first, &hello) != nil { // a stranger says it: the length is first
		return fail(&schema.FieldError{Field: "hello", Got: schema.Quote(string(first)),
			Want: "a node's name and protocols as JSON"})
	}
	protocol := Agree(h.Protocol, hello.Protocols)
	if protocol == 0 {
		return fail(&schema.FieldError{Field: "protocols", Got: fmt.Sprint(hello.Protocols),
			Want: fmt.Sprintf("one of %v among them", Spoken(h.Protocol))})
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
	b, err = json.Marshal(Hello{Cluster: h.Cluster, Node: h.Node, Protocols: []int{protocol}})
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

// Spoken are the protocols that are spoken, the newest first; only, if it is not 0, is the only one: a node may be held
// to it.
func Spoken(only int) []int {
	if only != 0 {
		return []int{only}
	}
	list := make([]int, 0, Protocol-Oldest+1)
	for p := Protocol; p >= Oldest; p-- {
		list = append(list, p)
	}
	return list
}

// Agree returns the newest protocol that is spoken here, see Spoken, and is among those; 0 if none is.
func Agree(only int, theirs []int) int {
	for _, p := range Spoken(only) {
		if slices.Contains(theirs, p) {
			return p
		}
	}
	return 0
}
