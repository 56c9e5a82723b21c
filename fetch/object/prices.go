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

// Money is an amount of US dollars, in billionths, which all list prices of requests are whole numbers of. In JSON it is
// a number of dollars, which is written and read exactly.
type Money int64

// Dollar is one US dollar.
const Dollar Money = 1e9

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

// money reads a decimal number.
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

// Transfer says which way bytes of a bucket go to their reader, as it is priced.
type Transfer string

// Ways of bytes.
const (
	InRegion    Transfer = "in-region"
	CrossRegion Transfer = "cross-region"
	Internet    Transfer = "internet"
)

// Transfers are all ways.
func Transfers() []Transfer { return []Transfer{InRegion, CrossRegion, Internet} }

// Price is what a cloud asks for in a region: for 1,000 requests of each kind, and for 2^30 bytes that are read, by where
// they are read.
type Price struct {
	Cloud  string `json:"cloud"`  // "s3", "gs" or "az"
	Region string `json:"region"` // as the cloud names it
	// Endpoint is the host of a server that is no cloud's own, as it stands in the URL of the bucket; "" for the cloud's.
	Endpoint string `json:"endpoint,omitempty"`
	Source   string `json:"source,omitempty"` // for people

	Get    Money `json:"get"`
	Head   Money `json:"head"`
	List   Money `json:"list"`
	Put    Money `json:"put"`
	Delete Money `json:"delete"`

	// PerSecond is how many reads a second the cloud says that it allows at first: of a prefix (S3), a bucket (Google Cloud
	// Storage), an account (Azure). 0: it does not say.
	PerSecond float64 `json:"requests_per_s,omitempty"`

	InRegion    Money `json:"in_region"`
	CrossRegion Money `json:"cross_region"`
	Internet    Money `json:"internet"`
}

// of is what 1,000 requests of a kind cost.
func (p *Price) of(k Kind) Money {
	return [...]Money{p.Get, p.Head, p.List, p.Put, p.Delete}[k]
}

// transfer is what 2^30 bytes cost.
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

// Each is what one request for bytes costs, and one byte that goes that way, in dollars.
func (p *Price) Each(t Transfer) (request, each float64) {
	return float64(p.Get) / 1000 / float64(Dollar), float64(p.transfer(t)) / (1 << 30) / float64(Dollar)
}

// Prices are those of a file.
type Prices struct {
	Dated  string  `json:"dated"` // when they held, as 2026-11-26
	Note   string  `json:"note,omitempty"`
	Prices []Price `json:"prices"`
}

//go:embed prices.json
var listPrices []byte

// ListPrices are the list prices of the three clouds that this program comes with.
func ListPrices() *Prices {
	p, err := DecodePrices(bytes.NewReader(listPrices))
	if err != nil {
		panic("object: prices.json: " + err.Error()) // a test reads it
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

// DecodePrices reads prices in the form of prices.json.
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

// Find is the price of a bucket by its URL. exact is false where the prices of its region are not known, and those of
// another region of the same cloud stand in. It is nil for what costs nothing that is known: directories, web servers,
// and servers that are no cloud's own.
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

// Bill is what requests cost.
type Bill struct {
	Requests Money `json:"requests"`
	Transfer Money `json:"transfer"` // of bytes that were read
	Total    Money `json:"total"`
}

// Cost is what requests to a bucket cost, with their bytes going that way; nothing if p is nil. It is rounded once, up,
// for requests and bytes each: add up counts, not bills. A request that failed is counted as one that is charged for.
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

// share is the number hi*2^64+lo divided by n, rounded up.
func share(hi, lo, n uint64) Money {
	lo, carry := bits.Add64(lo, n-1, 0)
	hi += carry
	if hi >= n {
		return math.MaxInt64 / 4 // more than two billion dollars
	}
	q, _ := bits.Div64(hi, lo, n)
	return Money(min(q, math.MaxInt64/4))
}

// Name says what the price is of.
func (p *Price) Name(exact bool) string {
	name := strings.Join(strings.Fields(p.Cloud+" "+p.Region+" "+p.Endpoint), " ")
	if !exact {
		name += " (assumed)"
	}
	return name
}
