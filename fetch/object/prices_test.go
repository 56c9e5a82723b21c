package object_test

import (
	"encoding/json"
	"math/big"
	"math/rand/v2"
	"strings"
	"testing"

	"bowstring/fetch/object"
)

// TestCostIsExact compares costs with those that are calculated with fractions of any size.
func TestCostIsExact(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 2))
	up := func(r *big.Rat) int64 {
		q, m := new(big.Int).DivMod(r.Num(), r.Denom(), new(big.Int))
		if m.Sign() > 0 {
			q.Add(q, big.NewInt(1))
		}
		return q.Int64()
	}
	for range 10_000 {
		some := func(most int64) int64 { return rng.Int64N(most >> rng.IntN(40)) }
		p := &object.Price{Get: object.Money(some(1 << 41)), Head: object.Money(some(1 << 41)),
			List: object.Money(some(1 << 41)), Put: object.Money(some(1 << 41)), CrossRegion: object.Money(some(1 << 41))}
		c := object.Counts{Gets: some(1 << 42), Heads: some(1 << 42), Lists: some(1 << 42), Puts: some(1 << 42),
			Deletes: some(1 << 42), BytesIn: some(1 << 50)}
		requests := new(big.Int)
		for _, of := range [][2]int64{{c.Gets, int64(p.Get)}, {c.Heads, int64(p.Head)}, {c.Lists, int64(p.List)},
			{c.Puts, int64(p.Put)}} {
			requests.Add(requests, new(big.Int).Mul(big.NewInt(of[0]), big.NewInt(of[1])))
		}
		wantRequests := new(big.Rat).SetFrac(requests, big.NewInt(1000))
		wantTransfer := new(big.Rat).SetFrac(new(big.Int).Mul(big.NewInt(c.BytesIn), big.NewInt(int64(p.CrossRegion))),
			big.NewInt(1<<30))
		most := new(big.Rat).SetInt64(1 << 60)
		if wantRequests.Cmp(most) > 0 || wantTransfer.Cmp(most) > 0 {
			continue
		}
		got := object.Cost(c, p, object.CrossRegion)
		want := object.Bill{Requests: object.Money(up(wantRequests)), Transfer: object.Money(up(wantTransfer))}
		want.Total = want.Requests + want.Transfer
		if got != want {
			t.Fatalf("%+v at %+v cost %+v, want %+v", c, p, got, want)
		}
	}
}

// TestListPrices: the prices that come with the program are those of the three clouds, and say what they are of.
func TestListPrices(t *testing.T) {
	prices := object.ListPrices()
	for url, want := range map[string]string{
		"s3://b?region=us-east-1":               "s3 us-east-1",
		"s3://b/prefix":                         "s3 us-east-1 (assumed)",
		"gs://b":                                "gs us-central1 (assumed)",
		"az://account/container":                "az eastus (assumed)",
		"s3://b?endpoint=http://127.0.0.1:9000": "",
		"s3://b?endpoint=http://minio:9000&region=local1": "",
		"file:///data":             "",
		"https://example.org/data": "",
	} {
		got := ""
		if p, exact := prices.Find(url); p != nil {
			got = p.Name(exact)
		}
		if got != want {
			t.Errorf("%s is priced as %q, want %q", url, got, want)
		}
	}
	imagenet := object.Counts{Gets: 1_281_167, BytesIn: 1_281_167 * 110_000}
	p, _ := prices.Find("s3://b?region=us-east-1")
	if got := object.Cost(imagenet, p, object.InRegion); got.Total.String() != "0.5124668" {
		t.Errorf("an epoch of ImageNet by single reads costs %s, want 0.5124668", got.Total)
	}
	if got := object.Cost(imagenet, p, object.CrossRegion); got.Transfer.String() != "2.624995448" {
		t.Errorf("its bytes from another region cost %s, want 2.624995448", got.Transfer)
	}
	if got := object.Cost(imagenet, nil, object.Internet); got != (object.Bill{}) {
		t.Errorf("without a price it costs %+v", got)
	}
}

// TestMoney is written and read exactly.
func TestMoney(t *testing.T) {
	for _, text := range []string{"0", "0.0004", "1", "12.5", "0.000000001", "999999999.999999999", "-0.25"} {
		var m object.Money
		if err := json.Unmarshal([]byte(text), &m); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		if b, _ := json.Marshal(m); string(b) != text {
			t.Errorf("%s is written as %s", text, b)
		}
	}
	for _, text := range []string{`"1"`, "1e3", "0.0000000001", "1234567890", "null"} {
		var m struct{ M object.Money }
		if err := json.Unmarshal([]byte(`{"M":`+text+`}`), &m); err == nil {
			t.Errorf("%s is read as %s", text, m.M)
		}
	}
}

// TestPricesThatAreNone: an error says what is wrong.
func TestPricesThatAreNone(t *testing.T) {
	for text, want := range map[string]string{
		`{`:                     "prices",
		`{"dated":"yesterday"}`: "dated",
		`{"dated":"2026-01-02","prices":[{"cloud":"aws"}]}`:                "prices[0].cloud",
		`{"dated":"2026-01-02","prices":[{"cloud":"s3","get":-1}]}`:        "prices[0].get",
		`{"dated":"2026-01-02","prices":[{"cloud":"s3","get":"cheap"}]}`:   "amount",
		`{"dated":"2026-01-02","prices":[{"cloud":"s3","egress":0.0001}]}`: "egress",
		`{"dated":"2026-01-02"} {}`:                                        "more than one",
	} {
		if _, err := object.DecodePrices(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want an error about %s", text, err, want)
		}
	}
}
