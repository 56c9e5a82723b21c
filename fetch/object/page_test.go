package object_test

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/dustin/go-humanize"

	"bowstring/fetch/object"
)

var update = flag.Bool("update", false, "write docs/cost.md anew")

// TestCostPage: the table of what an epoch costs in docs/cost.md is what the list prices come to.
func TestCostPage(t *testing.T) {
	const path, begin, end = "../../docs/cost.md", "<!-- epochs -->\n", "<!-- /epochs -->"
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(page), begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no table between %q and %q", path, begin, end)
	}
	want := before + begin + epochs() + end + after
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if !*update && want != string(page) {
		t.Errorf("%s is not what the prices come to; go test ./fetch/object -run TestCostPage -update writes it", path)
	}
}

// epochs is what 90 epochs of ImageNet cost, by how it is read: the first epoch and each later one.
func epochs() string {
	const samples, size, mib = 1_281_167, 110_000, 1 << 20
	spans := func(span int64) int64 { return (samples*size + span - 1) / span }
	prices := object.ListPrices()
	var b strings.Builder
	b.WriteString("| plan | requests in the first epoch | in each later one | S3, 90 epochs | Google, 90 epochs | Azure, 90 epochs " +
		"| S3, bytes from another region | over the internet |\n|---|---|---|---|---|---|---|---|\n")
	for _, p := range []struct {
		name         string
		first, later int64
		read, again  float64 // shares of the bytes that are read
	}{
		{"global shuffle, a request a sample, no cache", samples, samples, 1, 1},
		{"the same, spill holds all", samples, 0, 1, 0},
		{"the same, spill holds half", samples, samples / 2, 1, 0.5},
		{"spans of 8 MiB, spill holds all", spans(8 * mib), 0, 1, 0},
		{"8 nodes as one cache, spans of 8 MiB", spans(8 * mib), 0, 1, 0},
		{"8 nodes, each by itself, a request a sample", 8 * samples, 8 * samples, 8, 8},
		{"block shuffle, 1 MiB, no cache", spans(mib), spans(mib), 1, 1},
		{"block shuffle, 8 MiB, no cache", spans(8 * mib), spans(8 * mib), 1, 1},
	} {
		counts := object.Counts{Gets: p.first + 89*p.later, BytesIn: int64((p.read + 89*p.again) * samples * size)}
		fmt.Fprintf(&b, "| %s | %s | %s |", p.name, humanize.Comma(p.first), humanize.Comma(p.later))
		for _, url := range []string{"s3://b?region=us-east-1", "gs://b?region=us-central1", "az://b?region=eastus"} {
			price, _ := prices.Find(url)
			fmt.Fprintf(&b, " %s |", shown(object.Cost(counts, price, object.InRegion).Total))
		}
		price, _ := prices.Find("s3://b?region=us-east-1")
		for _, way := range []object.Transfer{object.CrossRegion, object.Internet} {
			fmt.Fprintf(&b, " %s |", shown(object.Cost(counts, price, way).Transfer))
		}
		b.WriteString("\n")
	}
	return b.String()
}

// shown is an amount of two digits below ten cents, else to the cent.
func shown(m object.Money) string {
	f := float64(m) / float64(object.Dollar)
	if m < object.Dollar/10 {
		return fmt.Sprintf("$%.2g", f)
	}
	return "$" + humanize.FormatFloat("#,###.##", f)
}
