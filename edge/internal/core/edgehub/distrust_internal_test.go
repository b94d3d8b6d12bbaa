package edgehub

import (
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"testing"
)

// A failed handshake is reported with the settings to check, on either transport.
func TestClaims_41_CertificateThatDoesNotHoldNamesWhatToSet(t *testing.T) {
	for name, tc := range map[string]struct {
		err  error
		want string
	}{
		"another name": {fmt.Errorf("dialling: %w", x509.HostnameError{Certificate: &x509.Certificate{DNSNames: []string{"cloud.other.example"}}, Host: "cloud.example"}), "modules.edgeHub.servers"},
		"another name, by QUIC": {errors.New(`CRYPTO_ERROR 0x12a (local): tls: failed to verify certificate: x509: cannot validate certificate for 198.51.100.10 because it doesn't contain any IP SANs`),
			"`advertise` of cloudcore.yaml"},
		"another CA":          {fmt.Errorf("dialling: %w", x509.UnknownAuthorityError{}), "edgecore join --force"},
		"another CA, by QUIC": {errors.New("tls: failed to verify certificate: x509: certificate signed by unknown authority"), "cloudcore token create --node"},
		"no answer":           {errors.New("connection refused"), ""},
	} {
		if got := distrust("cloud.example:443", tc.err); tc.want == "" && got != "" || !strings.Contains(got, tc.want) {
			t.Errorf("%s: %q, want %q in it", name, got, tc.want)
		}
	}
}
