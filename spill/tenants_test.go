package spill

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// A tenant over its share evicts its own and nothing of others', though there be room; and what it takes of the
// budget is within its share at any time.
func TestTenantsShare(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	opts := testOptions(t.TempDir())
	opts.Policy = LRU()
	c := openCache(t, opts)
	c.SetShares(func(tenant string) float64 { return map[string]float64{"small": 0.1}[tenant] })
	small, large := c.Tenant("small"), c.Tenant("large")
	if small == 0 || large == 0 || small == large || c.Tenant("small") != small {
		t.Fatalf("numbers %d, %d", small, large)
	}
	number := c.Dataset("d@1")
	store := func(tenant uint16, i, size int) bool {
		data, ref := fill(rand.New(rand.NewPCG(uint64(tenant), uint64(i))), size)
		return c.Put(ref, Place{Dataset: number, Tenant: tenant, Position: int64(i)}, 1e6, data)
	}
	const others = 30
	for i := range others {
		if !store(large, i, 50_000) {
			t.Fatalf("blob %d of the large tenant is not stored", i)
		}
	}
	kept := c.TenantBytes("large")
	ceiling := int64(0.1 * float64(opts.Bytes))
	stored := 0
	for i := range 300 {
		if store(small, i, 20_000+r.IntN(20_000)) {
			stored++
		}
		if n := c.TenantBytes("small"); n > ceiling {
			t.Fatalf("it has %d, its ceiling is %d", n, ceiling)
		}
	}
	if c.TenantBytes("large") != kept {
		t.Errorf("the other tenant had %d, and has %d", kept, c.TenantBytes("large"))
	}
	if stored < 200 {
		t.Errorf("%d of 300 blobs were stored in the place of its own", stored)
	}
	if n := c.TenantBytes("small"); n < ceiling/2 {
		t.Errorf("it has %d of %d", n, ceiling)
	}
	if store(small, 1000, int(ceiling)+1) {
		t.Error("a blob larger than the share is stored")
	}
	if c.Wants(Place{Dataset: number, Tenant: small}, ceiling+1, true) {
		t.Error("a blob larger than the share is wanted")
	}
	// A smaller share: its own go, until it fits.
	c.SetShares(func(tenant string) float64 { return map[string]float64{"small": 0.05}[tenant] })
	for i := range 20 {
		store(small, 2000+i, 20_000)
	}
	if n := c.TenantBytes("small"); n > ceiling/2 {
		t.Errorf("it has %d, its ceiling is %d now", n, ceiling/2)
	}
}

// Blobs of a tenant over its share, and blobs without a tenant, move to the account of the next user; blobs within a
// share do not.
func TestTenantsTakeOver(t *testing.T) {
	dir := t.TempDir()
	opts := testOptions(dir)
	c := openCache(t, opts)
	c.SetShares(func(string) float64 { return 0 })
	one, other := c.Tenant("one"), c.Tenant("other")
	number := c.Dataset("d@1")
	data, ref := content(1)
	at := func(tenant uint16) Place { return Place{Dataset: number, Tenant: tenant, Position: 1} }
	use := func(c *Cache, tenant uint16) {
		t.Helper()
		b, ok := c.Get(ref, at(tenant))
		if !ok {
			t.Fatal("it is not there")
		}
		b.Release()
	}
	c.Put(ref, at(one), 1e6, data)
	n := c.TenantBytes("one")
	use(c, other)
	if c.TenantBytes("one") != n || n == 0 {
		t.Error("it is no longer that of who brought it")
	}
	c.SetShares(func(tenant string) float64 { return map[string]float64{"one": 1e-9}[tenant] })
	use(c, other)
	if c.TenantBytes("one") != 0 || c.TenantBytes("other") != n {
		t.Error("it is still that of who is over its share")
	}
	closeCache(t, c)
	again := openCache(t, opts)
	number = again.Dataset("d@1")
	again.SetShares(func(string) float64 { return 0 })
	third := again.Tenant("third")
	use(again, third)
	if again.TenantBytes("third") != n {
		t.Error("after a restart it is not that of who uses it")
	}
	again.Resize(MinBytes)
}

// Tenants that callers make up leave nothing behind where there are no shares, and are bounded where there are.
func TestMadeUpTenants(t *testing.T) {
	c := openCache(t, testOptions(t.TempDir()))
	for i := range 100_000 {
		if n := c.Tenant(fmt.Sprint("made up ", i)); n != 0 {
			t.Fatalf("tenant %d has the number %d", i, n)
		}
	}
	if n, m := len(c.payers.list), len(c.payers.numbers); n != 0 || m != 0 {
		t.Errorf("%d tenants and %d names are kept", n, m)
	}
	c.SetShares(func(string) float64 { return 0.5 })
	known := c.Tenant("known")
	for i := range 100_000 {
		c.Tenant(fmt.Sprint("made up ", i))
	}
	if n := len(c.payers.list); n > maxPayers+1 {
		t.Errorf("%d tenants are kept", n)
	}
	if known == 0 || c.Tenant("known") != known || c.Tenant("one more") != 0 {
		t.Error("a number has changed, or there is one too many")
	}
}
