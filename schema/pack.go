package schema

import (
	"fmt"
	"strconv"
	"unicode/utf8"
)

const (
	// MaxPackLength bounds Pack.Length, in tokens.
	MaxPackLength = 1 << 20
	// MaxPackWindow bounds Pack.Window, in documents, and is what it is where the request leaves it out.
	MaxPackWindow = 1 << 16
	// MaxPackBatch bounds the sequences of a global batch of a request with pack.
	MaxPackBatch = 1 << 20
)

// Values of Pack.By and of Pack.Long. A request that leaves them out means best_fit and error.
const (
	PackBestFit  = "best_fit"  // best-fit decreasing: a document goes where least room is left
	PackFirstFit = "first_fit" // first-fit decreasing: it goes into the first sequence that has room
	PackSplit    = "split"     // documents follow one another, and are cut where a sequence is full

	LongError = "error" // a document that is longer than a sequence is an error of the request
	LongCut   = "cut"   // what is beyond a sequence's length is left out
	LongSplit = "split" // it becomes several documents, each as long as a sequence but for the last
	LongDrop  = "drop"  // it is left out
)

// Columns that a request with pack may name beside stored ones. Where it names no columns, it gets all of them.
const (
	PositionIDsColumn = "position_ids" // where each token lies in its document, or in the part of it that is here; from 0
	SegmentIDsColumn  = "segment_ids"  // which document of the sequence each token is of; from 1, 0 is padding
	CuSeqlensColumn   = "cu_seqlens"   // where the documents of the sequence begin, and where the last one ends
)

// packColumns are those.
var packColumns = []string{PositionIDsColumn, SegmentIDsColumn, CuSeqlensColumn}

// Pack has documents served in sequences of at most so many tokens: a row of a batch is a sequence.
type Pack struct {
	// Length is how many tokens a sequence has at most.
	Length int64 `json:"length"`
	// Column has the tokens: a metadata column of lists of integers.
	Column string `json:"column"`
	// Lengths is a metadata column of integers that says how many tokens a document has; "": the lengths of Column's
	// lists, which have to be read for it.
	Lengths string `json:"lengths,omitempty"`
	By      string `json:"by,omitempty"`
	// Window is how many documents, of those that follow one another in the epoch's order, are packed together; 0:
	// MaxPackWindow.
	Window int64  `json:"window,omitempty"`
	Long   string `json:"long,omitempty"`
	// Pad is the token that fills a sequence up to Length; nil: sequences are as long as what they have.
	Pad *int64 `json:"pad,omitempty"`
	// Balance has the sequences of a step shared out by what they cost; nil: by their number alone.
	Balance *PackBalance `json:"balance,omitempty"`
}

// PackBalance says what a sequence costs.
type PackBalance struct {
	// Cost is an expression over len, a document's length in tokens. A sequence costs the sum over its documents.
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

func checkPackColumn(path, name, want string) error {
	if name == "" || len(name) > MaxNameLen || !utf8.ValidString(name) {
		return &FieldError{Field: path, Got: Quote(name), Want: want}
	}
	return nil
}

// checkPack checks Pack, which is given, and what it goes with.
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
