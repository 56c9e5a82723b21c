package command

import "testing"

// An address without a port means that of serve; what is no address is refused.
func TestServerAddr(t *testing.T) {
	for given, want := range map[string]string{
		"grpc://host": "host:8815", "grpc+tls://host": "host:8815", "grpc+tcp://10.0.0.1": "10.0.0.1:8815",
		"grpc://host:1": "host:1", "grpc://[::1]": "[::1]:8815", "grpc+tls://[::1]:9": "[::1]:9",
		"": "", "host": "", "grpc://": "", "grpc://:1": "", "grpc://host:": "", "grpc://::1": "", "grpc://[::1": "",
		"grpc://user@host": "", "grpc://host/x": "", "http://host": "", "grpc+unix:///run/b": "unix:/run/b", "grpc+unix://b": "",
	} {
		addr, encrypted, err := serverAddr(given)
		if addr != want || (err == nil) != (want != "") {
			t.Errorf("%q: got %q, %v, want %q", given, addr, err, want)
		}
		if want := len(given) > 8 && given[:8] == "grpc+tls"; err == nil && encrypted != want {
			t.Errorf("%q: encrypted: %v", given, encrypted)
		}
	}
}
