package schema

import (
	"fmt"
	"strconv"
	"unicode/utf8"
)

const (
	// MaxPackLength bounds Pack.Length, in tokens.
	MaxPackLength = 1 << 20
	// MaxPackWindow bounds Pack.Window, in documents, and is its default.
	MaxPackWindow = 1 << 16
	// MaxPackBatch bounds the sequences of a global batch of a request with pack.
	MaxPackBatch = 1 << 20
)

// Values of Pack.By and of Pack.Long. A request that leaves them out means best_fit and error.
const (
	PackBestFit  = "best_fit"  // best-fit decreasing: a document goes where it leaves the least room
	PackFirstFit = "first_fit" // first-fit decreasing: it goes into the first sequence with room
	PackSplit    = "split"     // documents follow one another, and are cut where a sequence ends

	LongError = "error" // a document that is longer than a sequence is an error of the request
	LongCut   = "cut"   // the tokens beyond the length of a sequence are left out
	LongSplit = "split" // it becomes several documents, each as long as a sequence, except the last
	LongDrop  = "drop"  // the document is left out
)

// Columns that a request with pack may name in addition to stored ones. A request without
// columns gets all of them. Their names and contents are those of FlashAttention's
// variable-length kernels and of Hugging Face transformers.
const (
	PositionIDsColumn = "position_ids" // position of each token in its document, or in the part that the sequence has; from 0
	SegmentIDsColumn  = "segment_ids"  // number of each token's document in the sequence; from 1, 0 is padding
	CuSeqlensColumn   = "cu_seqlens"   // offsets at which the documents of the sequence begin, and the end of the last one
)

// packColumns are these columns.
var packColumns = []string{PositionIDsColumn, SegmentIDsColumn, CuSeqlensColumn}

// Pack makes a stream serve documents in sequences of a limited number of tokens: a row
// of a batch is a sequence.
type Pack struct {
	// Length is the number of tokens that a sequence has at most.
	Length int64 `json:"length"`
	// Column has the tokens: a metadata column of lists of integers.
	Column string `json:"column"`
	// Lengths is a metadata column of integers with the number of tokens of each
	// document. "" means the lengths of Column's lists, which have to be read for it.
	Lengths string `json:"lengths,omitempty"`
	By      string `json:"by,omitempty"`
	// Window is how many consecutive documents, in the epoch's order, are packed
	// together; 0 means MaxPackWindow.
	Window int64  `json:"window,omitempty"`
	Long   string `json:"long,omitempty"`
	// Pad is the token that fills a sequence up to Length. If nil, sequences are as long
	// as their tokens.
	Pad *int64 `json:"pad,omitempty"`
	// Balance shares the sequences of a step by their cost; nil shares them by number.
	Balance *PackBalance `json:"balance,omitempty"`
}

// PackBalance defines the cost of a sequence.
type PackBalance struct {
	// Cost is an expression over len, a document's length in tokens. A sequence costs the
	// sum over its documents. Attention is quadratic in len, so equal numbers of tokens
	// cost different times.
	Cost string `json:"cost"`
}

// check implements checker.
func (b *PackBalance) check(string) error {
	return checkExpression("pack.balance.cost", b.Cost, `an expression over len, such as "len * len + 1000 * len"`)
}

// check implements checker.
func (p *Pack) check(field string) error {
	path := "pack." + field
	switch field {
	case "length":
		return checkRange(path, p.Length, 1, MaxPackLength)
	case "column":
		return checkPackColumn(path, p.Column, "the column of lists that has the tokens")
	case "lengths":
		return checkPackColumn(path, p.Lengths, "the column of integers that says how many tokens a document has")
	case "by":
		return checkOneOf(path, p.By, PackBestFit, PackFirstFit, PackSplit)
	case "window":
		return checkRange(path, p.Window, 1, MaxPackWindow)
	case "long":
		return checkOneOf(path, p.Long, LongError, LongCut, LongSplit, LongDrop)
	case "balance":
		return checkAll(p.Balance)
	}
	return nil
}

// checkPackColumn checks the name of a column, as far as that is possible without a
// snapshot.
func checkPackColumn(path, name, want string) error {
	if name == "" || len(name) > MaxNameLen || !utf8.ValidString(name) {
		return &FieldError{Field: path, Got: Quote(name), Want: want}
	}
	return nil
}

// checkPack checks Pack, which is set, and the fields that cannot go with it.
func (r *Request) checkPack() error {
	p := r.Pack
	if err := checkAll(p); err != nil {
		return err
	}
	if p.By == PackSplit && p.Long != "" {
		return &FieldError{Field: "pack.long", Got: Quote(p.Long) + " with by " + strconv.Quote(PackSplit),
			Want: "it left out: every document is cut where a sequence is full"}
	}
	mode, _ := r.OrderOf()
	for _, f := range []struct {
		name  string
		wrong bool
		got   string
		want  string
	}{
		{"mixture", r.Mixture != nil, "it with pack", "one of them: each source packed by a request of its own"},
		{"sample", r.Sample != nil, "it with pack", "one of them"},
		{"bucket_by_length", r.BucketByLength != nil, "it with pack", "one of them: sequences have like lengths already"},
		{"order", mode != OrderStrict, Quote(r.Order) + " with pack",
			strconv.Quote(OrderStrict) + ", as other orders take sequences apart"},
		{"assign", r.Assign == AssignLocal, Quote(r.Assign) + " with pack", strconv.Quote(AssignPlan)},
		{"place", r.Place == PlaceClient, Quote(r.Place) + " with pack", strconv.Quote(PlaceServer)},
		{"layout", r.Layout == LayoutHuggingFace, Quote(string(r.Layout)) + " with pack",
			strconv.Quote(string(LayoutLargeBinary))},
		{"on_error", r.OnError == OnErrorSkip, Quote(r.OnError) + " with pack", fmt.Sprintf(
			"%q or %q, as another document would not fit in the place of one", OnErrorFail, OnErrorNull)},
		{"batch", r.Batch > MaxPackBatch, strconv.FormatInt(r.Batch, 10), fmt.Sprintf(
			"at most %d sequences with pack", MaxPackBatch)},
	} {
		if f.wrong {
			return &FieldError{Field: f.name, Got: f.got, Want: f.want}
		}
	}
	return nil
}
