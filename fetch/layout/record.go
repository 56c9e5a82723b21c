package layout

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"bowstring/schema"
)

// Limits of records.
const (
	// MaxNodes bounds the nodes of a layout. Up to 655 the largest share of the slots is
	// within 1 % of the mean whatever their number; at 1,023 it is 1.5 % above.
	MaxNodes = 1024
	// MaxWeight bounds the weight of a node.
	MaxWeight = schema.MaxWorld
	// MaxAddress bounds the bytes of an address.
	MaxAddress = 512
	// MaxBytes bounds the encoding of a record.
	MaxBytes = schema.MaxRequestBytes
)

// version is the number of the rules by which slots follow from a record. A record of
// other rules is refused, as it would name other owners.
const version = 1

// Node is a node of a layout.
type Node struct {
	// ID names the node. It is unique in the layout and stays the same when the node is
	// restarted, as its cache does.
	ID string `json:"id"`
	// Address is where clients and peers reach the node, as a Flight location such as
	// grpc://10.0.0.1:8815; "" if it has none but the connection that a client has.
	Address string `json:"address,omitempty"`
	// Zone is the node's zone. Traffic between zones is expensive.
	Zone string `json:"zone,omitempty"`
	// Weight is how many ranks the node has: what part of each batch is used there. A
	// node of weight 0 owns only what does not fit into the others.
	Weight int64 `json:"weight"`
	// Capacity is how many bytes of blobs the node can keep. A node of capacity 0 owns
	// nothing.
	Capacity int64 `json:"capacity"`
}

// Record is what a layout is made of.
type Record struct {
	// Rules is the version of the rules by which slots follow from the record.
	Rules int64 `json:"layout"`
	// Bytes is the size of the blobs that the nodes are to keep together. By it the
	// capacities bound what they own. 0 means that all of it fits into any one of them.
	Bytes int64 `json:"bytes"`
	// Nodes are in ascending order of ID.
	Nodes []Node `json:"nodes"`
	// Ranks says where the ranks of the job are: Ranks[r] is the index in Nodes of the
	// node that rank r runs beside. nil: they are dealt out by weight.
	Ranks []int64 `json:"ranks,omitempty"`
}

// NewRecord returns a valid record of nodes in any order. ranks names the node of each
// rank, or is nil; where it is given, the weights are counted from it. The error is a
// [schema.FieldError]; nodes is not kept.
func NewRecord(size int64, nodes []Node, ranks []string) (Record, error) {
	r := Record{Rules: version, Bytes: size, Nodes: slices.Clone(nodes)}
	slices.SortFunc(r.Nodes, func(a, b Node) int { return strings.Compare(a.ID, b.ID) })
	if ranks != nil {
		var err error
		if r.Ranks, err = r.Placement(ranks); err != nil {
			return Record{}, err
		}
		for i := range r.Nodes {
			r.Nodes[i].Weight = 0
		}
		for _, i := range r.Ranks {
			r.Nodes[i].Weight++
		}
	}
	return r, r.Check()
}

// Placement finds the nodes that ranks name, as indexes in Nodes. The error is a
// [schema.FieldError] of the request's field "ranks".
func (r *Record) Placement(ranks []string) ([]int64, error) {
	at := make(map[string]int64, len(r.Nodes))
	for i, n := range r.Nodes {
		at[n.ID] = int64(i)
	}
	placed := make([]int64, len(ranks))
	for rank, id := range ranks {
		i, ok := at[id]
		if !ok {
			return nil, &schema.FieldError{Field: fmt.Sprintf("ranks[%d]", rank), Got: schema.Quote(id),
				Want: "the id of a node of the cluster: " + r.some()}
		}
		placed[rank] = i
	}
	return placed, nil
}

// some lists the nodes, or the first of very many.
func (r *Record) some() string {
	const most = 16
	var ids []string
	for _, n := range r.Nodes[:min(len(r.Nodes), most)] {
		ids = append(ids, n.ID)
	}
	if len(r.Nodes) > most {
		ids = append(ids, fmt.Sprintf("and %d more", len(r.Nodes)-most))
	}
	return strings.Join(ids, ", ")
}

// Parse decodes and checks a record. Only the canonical encoding is taken, as the name
// is its hash. The error is a [schema.FieldError].
func Parse(b []byte) (Record, error) {
	var r Record
	if err := schema.DecodeJSON("layout", b, &r); err != nil {
		return Record{}, err
	}
	if err := r.Check(); err != nil {
		return Record{}, err
	}
	if !bytes.Equal(b, r.Marshal()) {
		return Record{}, &schema.FieldError{Field: "layout", Got: "another encoding",
			Want: "the canonical one: fields in their order, no spaces, defaults left out"}
	}
	return r, nil
}

// Check reports the first field that is impossible, as a [schema.FieldError].
func (r *Record) Check() error {
	switch {
	case r.Rules != version:
		return &schema.FieldError{Field: "layout", Got: strconv.FormatInt(r.Rules, 10),
			Want: fmt.Sprintf("%d, the rules that this program knows", version)}
	case r.Bytes < 0:
		return &schema.FieldError{Field: "bytes", Got: strconv.FormatInt(r.Bytes, 10), Want: "0 or more"}
	case len(r.Nodes) < 1 || len(r.Nodes) > MaxNodes:
		return &schema.FieldError{Field: "nodes", Got: fmt.Sprintf("%d nodes", len(r.Nodes)),
			Want: fmt.Sprintf("1 to %d", MaxNodes)}
	case len(r.Ranks) > schema.MaxWorld:
		return &schema.FieldError{Field: "ranks", Got: fmt.Sprintf("%d ranks", len(r.Ranks)),
			Want: fmt.Sprintf("at most %d", schema.MaxWorld)}
	}
	for i := range r.Nodes {
		if err := r.Nodes[i].check(fmt.Sprintf("nodes[%d].", i)); err != nil {
			return err
		}
		if i > 0 && r.Nodes[i].ID <= r.Nodes[i-1].ID {
			return &schema.FieldError{Field: fmt.Sprintf("nodes[%d].id", i), Got: schema.Quote(r.Nodes[i].ID),
				Want: "nodes in ascending order of id, each once"}
		}
	}
	for rank, node := range r.Ranks {
		if node < 0 || node >= int64(len(r.Nodes)) {
			return &schema.FieldError{Field: fmt.Sprintf("ranks[%d]", rank), Got: strconv.FormatInt(node, 10),
				Want: fmt.Sprintf("0 to %d, as there are %d nodes", len(r.Nodes)-1, len(r.Nodes))}
		}
	}
	return nil
}

// Check reports the first field of a node that is impossible.
func (n *Node) Check() error { return n.check("") }

func (n *Node) check(at string) error {
	if err := schema.CheckName(at+"id", n.ID); err != nil {
		return err
	}
	if n.Zone != "" {
		if err := schema.CheckName(at+"zone", n.Zone); err != nil {
			return err
		}
	}
	if n.Address != "" {
		u, err := url.Parse(n.Address)
		if err != nil || len(n.Address) > MaxAddress || u.Scheme != "grpc" && u.Scheme != "grpc+tcp" &&
			u.Scheme != "grpc+tls" || u.Port() == "" || u.Hostname() == "" || u.User != nil {
			return &schema.FieldError{Field: at + "address", Got: schema.Quote(n.Address),
				Want: fmt.Sprintf("grpc://HOST:PORT or grpc+tls://HOST:PORT of at most %d bytes", MaxAddress)}
		}
	}
	if n.Weight < 0 || n.Weight > MaxWeight {
		return &schema.FieldError{Field: at + "weight", Got: strconv.FormatInt(n.Weight, 10),
			Want: fmt.Sprintf("0 to %d", MaxWeight)}
	}
	if n.Capacity < 0 {
		return &schema.FieldError{Field: at + "capacity", Got: strconv.FormatInt(n.Capacity, 10),
			Want: "0 bytes or more"}
	}
	return nil
}

// Marshal returns the canonical encoding: JSON with the fields in their order, no
// spaces and defaults left out.
func (r Record) Marshal() []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(r); err != nil {
		panic(err) // plain structs of strings and integers always encode
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

// Name is the SHA-256 of the canonical encoding, as 64 hexadecimal digits.
func (r Record) Name() string {
	sum := sha256.Sum256(r.Marshal())
	return hex.EncodeToString(sum[:])
}
