package object

import (
	"bytes"
	_ "embed" // prices.json
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/bits"
	"net/url"
	"os"
	"strings"
	"time"

	"bowstring/schema"
)

// Money is an amount of US dollars, in billionths. All list prices of requests are whole
// numbers of billionths, so sums are exact, which floats would not be. In JSON it is a
// decimal number of dollars, which is written and read exactly.
type Money int64

// Dollar is one US dollar.
const Dollar Money = 1e9

// decimals is how many digits a Money has behind the point.
const decimals = 9

// String writes the amount as a decimal number of dollars.
func (m Money) String() string {
	sign, n := "", uint64(m)
	if m < 0 {
		sign, n = "-", -n
	}
	s := fmt.Sprintf("%s%d.%0*d", sign, n/uint64(Dollar), decimals, n%uint64(Dollar))
	return strings.TrimSuffix(strings.TrimRight(s, "0"), ".")
}

// MarshalJSON implements json.Marshaler.
func (m Money) MarshalJSON() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalJSON implements json.Unmarshaler.
func (m *Money) UnmarshalJSON(b []byte) error {
	n, ok := money(string(b))
	if !ok {
		return fmt.Errorf("%w: %s is no amount of dollars: want a decimal number with up to %d digits behind the point, such "+
			"as 0.0004", schema.ErrInvalid, b, decimals)
	}
	*m = n
	return nil
}

// money parses a decimal number of dollars. Numbers with an exponent are refused: no
// amount needs one.
func money(s string) (Money, bool) {
	s, negative := strings.CutPrefix(s, "-")
	whole, rest, _ := strings.Cut(s, ".")
	if whole == "" || len(rest) > decimals || len(whole) > decimals {
		return 0, false
	}
	var n Money
	for _, c := range whole + rest + strings.Repeat("0", decimals-len(rest)) {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = 10*n + Money(c-'0')
	}
	if negative {
		n = -n
	}
	return n, true
}

// Transfer is the way of a bucket's bytes to their reader, as clouds price it.
type Transfer string

// Ways of transfer.
const (
	InRegion    Transfer = "in-region"
	CrossRegion Transfer = "cross-region"
	Internet    Transfer = "internet"
)

// Transfers are all ways of transfer.
func Transfers() []Transfer { return []Transfer{InRegion, CrossRegion, Internet} }

// Price is what a cloud charges in a region: for 1,000 requests of each kind, and for
// 2^30 bytes that are read, by the place of the reader.
type Price struct {
	Cloud  string `json:"cloud"`  // "s3", "gs" or "az"
	Region string `json:"region"` // as the cloud names it
	// Endpoint is the host of a server that is not the cloud's own, as in the URL of the
	// bucket; "" for the cloud's.
	Endpoint string `json:"endpoint,omitempty"`
	Source   string `json:"source,omitempty"` // for people: a page with the price

	Get    Money `json:"get"`
	Head   Money `json:"head"`
	List   Money `json:"list"`
	Put    Money `json:"put"`
	Delete Money `json:"delete"`

	// PerSecond is the rate of reads that the cloud documents as allowed at first: of a
	// prefix (S3), a bucket (Google Cloud Storage) or an account (Azure). 0 means that it
	// documents none.
	PerSecond float64 `json:"requests_per_s,omitempty"`

	InRegion    Money `json:"in_region"`
	CrossRegion Money `json:"cross_region"`
	Internet    Money `json:"internet"`
}

// of is the price of 1,000 requests of a kind.
func (p *Price) of(k Kind) Money {
	return [...]Money{p.Get, p.Head, p.List, p.Put, p.Delete}[k]
}

// transfer is the price of 2^30 bytes.
func (p *Price) transfer(t Transfer) Money {
	switch t {
	case CrossRegion:
		return p.CrossRegion
	case Internet:
		return p.Internet
	default:
		return p.InRegion
	}
}

// Each is the price in dollars of one request for bytes, and of one byte that is
// transferred.
func (p *Price) Each(t Transfer) (request, each float64) {
	return float64(p.Get) / 1000 / float64(Dollar), float64(p.transfer(t)) / (1 << 30) / float64(Dollar)
}

// Prices are the contents of a file of prices.
type Prices struct {
	Dated  string  `json:"dated"` // day on which they held, as 2026-11-26
	Note   string  `json:"note,omitempty"`
	Prices []Price `json:"prices"`
}

//go:embed prices.json
var listPrices []byte

// ListPrices are the embedded list prices of the three clouds.
func ListPrices() *Prices {
	p, err := DecodePrices(bytes.NewReader(listPrices))
	if err != nil {
		panic("object: prices.json: " + err.Error()) // a test reads it, so this cannot happen
	}
	return p
}

// ReadPrices reads a file of prices.
func ReadPrices(path string) (*Prices, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // it was read
	p, err := DecodePrices(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return p, nil
}

// DecodePrices reads prices in the form of prices.json. Unknown fields are an error,
// because a misspelled price would count as free.
func DecodePrices(r io.Reader) (*Prices, error) {
	d := json.NewDecoder(r)
	d.DisallowUnknownFields()
	p := &Prices{}
	if err := d.Decode(p); err != nil {
		return nil, fmt.Errorf("%w: prices: %w", schema.ErrInvalid, err)
	}
	if d.More() {
		return nil, fmt.Errorf("%w: prices: there is more than one JSON object", schema.ErrInvalid)
	}
	if _, err := time.Parse(time.DateOnly, p.Dated); err != nil {
		return nil, &schema.FieldError{Field: "dated", Got: fmt.Sprintf("%q", p.Dated), Want: "a day, such as 2026-11-26"}
	}
	for i := range p.Prices {
		if err := p.Prices[i].check(fmt.Sprintf("prices[%d].", i)); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// check returns the first field of a price that is not allowed; at is its place in the
// file.
func (p *Price) check(at string) error {
	switch p.Cloud {
	case "s3", "gs", "az":
	default:
		return &schema.FieldError{Field: at + "cloud", Got: fmt.Sprintf("%q", p.Cloud), Want: "s3, gs or az"}
	}
	if p.PerSecond < 0 {
		return &schema.FieldError{Field: at + "requests_per_s", Got: fmt.Sprint(p.PerSecond), Want: "0 or more"}
	}
	for name, m := range map[string]Money{"get": p.Get, "head": p.Head, "list": p.List, "put": p.Put, "delete": p.Delete,
		"in_region": p.InRegion, "cross_region": p.CrossRegion, "internet": p.Internet} {
		if m < 0 || m > 1000*Dollar {
			return &schema.FieldError{Field: at + name, Got: m.String(), Want: "0 to 1000 dollars"}
		}
	}
	return nil
}

// Find returns the price of a bucket by its URL. exact is false if the prices of its
// region are not known; the price is then that of another region of the same cloud. The
// result is nil for a bucket without known prices: directories, web servers, and servers
// that are not a cloud's own.
func (p *Prices) Find(bucket string) (price *Price, exact bool) {
	u, err := url.Parse(bucket)
	if err != nil {
		return nil, false
	}
	region, endpoint := u.Query().Get("region"), u.Query().Get("endpoint")
	if e, err := url.Parse(endpoint); err == nil && e.Host != "" {
		endpoint = e.Host
	}
	for i := range p.Prices {
		one := &p.Prices[i]
		if one.Cloud != u.Scheme || one.Endpoint != endpoint {
			continue
		}
		if one.Region == region {
			return one, true
		}
		if price == nil {
			price = one
		}
	}
	return price, false
}

// Bill is the cost of requests.
type Bill struct {
	Requests Money `json:"requests"`
	Transfer Money `json:"transfer"` // of bytes that were read
	Total    Money `json:"total"`
}

// Cost is the cost of requests to a bucket whose bytes are transferred that way; nothing
// if p is nil. Requests and bytes are each rounded up once: to combine costs, add counts,
// not bills. Failed requests are counted as charged. The products are computed in 128
// bits, as counts of bytes times prices may exceed 64.
func Cost(c Counts, p *Price, t Transfer) Bill {
	if p == nil {
		return Bill{}
	}
	var b Bill
	var hi, lo uint64
	for _, k := range Kinds() {
		h, l := bits.Mul64(uint64(max(c.Number(k), 0)), uint64(p.of(k)))
		var carry uint64
		lo, carry = bits.Add64(lo, l, 0)
		hi, _ = bits.Add64(hi, h, carry)
	}
	b.Requests = share(hi, lo, 1000)
	hi, lo = bits.Mul64(uint64(max(c.BytesIn, 0)), uint64(p.transfer(t)))
	b.Transfer = share(hi, lo, 1<<30)
	b.Total = b.Requests + b.Transfer
	return b
}

// share is (hi·2^64+lo)/n, rounded up.
func share(hi, lo, n uint64) Money {
	lo, carry := bits.Add64(lo, n-1, 0)
	hi += carry
	if hi >= n {
		return math.MaxInt64 / 4 // more than two billion dollars
	}
	q, _ := bits.Div64(hi, lo, n)
	return Money(min(q, math.MaxInt64/4))
}

// Name describes the price for people: cloud, region and endpoint.
func (p *Price) Name(exact bool) string {
	name := strings.Join(strings.Fields(p.Cloud+" "+p.Region+" "+p.Endpoint), " ")
	if !exact {
		name += " (assumed)"
	}
	return name
}
