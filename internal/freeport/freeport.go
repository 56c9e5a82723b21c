// Package freeport finds ports for the servers of tests.
package freeport

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
)

// Ports from first to end-1 are below those that the kernel gives to connections of clients. One of those is taken now
// and then before the server listens, which may be half a minute later.
const first, end = 20_000, 32_000

// given has the ports that On has returned.
var given sync.Map

// On returns a port of an address without a listener. A process gets each port once. Another process could listen at
// it before the server does, which tests accept. It is safe for concurrent use.
func On(ip string) (int, error) {
	var failed error
	for range 100 {
		port := first + rand.IntN(end-first)
		if _, before := given.LoadOrStore(port, true); before {
			continue
		}
		l, err := new(net.ListenConfig).Listen(context.Background(), "tcp", net.JoinHostPort(ip, strconv.Itoa(port)))
		if err == nil {
			return port, l.Close()
		}
		failed = err
	}
	return 0, fmt.Errorf("100 ports of %s are not free: %w", ip, failed)
}
