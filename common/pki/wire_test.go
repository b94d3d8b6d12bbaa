package pki_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/skerry-io/skerry/common/pki"
	"github.com/skerry-io/skerry/common/protocol"
)

// spoken are the versions of the cloud of these tests.
var spoken = protocol.Window{Min: 2, Max: 3}

func body(t testing.TB, change func(*pki.JoinRequest)) []byte {
	t.Helper()
	key, err := pki.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	csr, err := pki.NewNodeCSR(key, "edge1")
	if err != nil {
		t.Fatal(err)
	}
	request := pki.JoinRequest{NodeName: "edge1", CSR: string(csr), Version: "v1", Protocol: 3}
	if change != nil {
		change(&request)
	}
	data, err := json.Marshal(request)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestParseJoinRequest(t *testing.T) {
	for name, tc := range map[string]struct {
		body []byte
		want pki.Reason // "": good
	}{
		"good":              {body(t, nil), ""},
		"no JSON":           {[]byte("<xml/>"), pki.ReasonBadRequest},
		"empty":             {nil, pki.ReasonBadRequest},
		"another type":      {[]byte(`{"nodeName": 7}`), pki.ReasonBadRequest},
		"another protocol":  {body(t, func(r *pki.JoinRequest) { r.Protocol++ }), pki.ReasonProtocol},
		"an older one":      {body(t, func(r *pki.JoinRequest) { r.Protocol = 1 }), pki.ReasonProtocol},
		"a newer window":    {body(t, func(r *pki.JoinRequest) { r.Protocol, r.ProtocolMin = 5, 4 }), pki.ReasonProtocol},
		"a negative one":    {body(t, func(r *pki.JoinRequest) { r.Protocol = -1 }), pki.ReasonProtocol},
		"no protocol":       {[]byte(`{}`), pki.ReasonProtocol},
		"bad name":          {body(t, func(r *pki.JoinRequest) { r.NodeName = "../edge1" }), pki.ReasonBadName},
		"name of another":   {body(t, func(r *pki.JoinRequest) { r.NodeName = "edge2" }), pki.ReasonBadCSR},
		"no CSR":            {body(t, func(r *pki.JoinRequest) { r.CSR = "" }), pki.ReasonBadCSR},
		"a newer edgecore":  {append([]byte(`{"more": {}, `), body(t, nil)[1:]...), ""},
		"a hostile version": {body(t, func(r *pki.JoinRequest) { r.Version = "v1\nI0101 root logged in" }), ""},
	} {
		t.Run(name, func(t *testing.T) {
			request, _, err := pki.ParseJoinRequest(tc.body, spoken)
			var refusal *pki.Refusal
			switch {
			case tc.want == "" && err != nil:
				t.Error(err)
			case tc.want != "" && (!errors.As(err, &refusal) || refusal.Reason != tc.want):
				t.Errorf("got %v; want %s", err, tc.want)
			}
			if strings.ContainsAny(request.Version, "\n\x1b") {
				t.Errorf("the version %q would break a log", request.Version)
			}
		})
	}
}

func FuzzParseJoinRequest(f *testing.F) {
	f.Add(body(f, nil))
	f.Add([]byte(`{"nodeName": "edge1", "nodeName": "edge2", "csr": "` + strings.Repeat("A", 64<<10) + `", "protocol": 18446744073709551616}`))
	f.Add([]byte(`{"nodeName": "../\u0000$(reboot)", "csr": null}`))
	f.Add([]byte(`{"nodeName": "edge1", "csr": "-----BEGIN CERTIFICATE REQUEST-----", "protocol": 1}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		request, csr, err := pki.ParseJoinRequest(data, spoken)
		if err == nil && csr.Subject.CommonName != "system:node:"+string(request.NodeName) {
			t.Errorf("took a request of %q for %q", csr.Subject.CommonName, request.NodeName)
		}
	})
}

func TestReasons(t *testing.T) {
	for reason, want := range map[pki.Reason]struct {
		status    int
		temporary bool
	}{
		pki.ReasonBadCSR:       {http.StatusBadRequest, false},
		pki.ReasonTokenWrong:   {http.StatusUnauthorized, false},
		pki.ReasonTokenUsedUp:  {http.StatusForbidden, false},
		pki.ReasonNodeLive:     {http.StatusConflict, false},
		pki.ReasonTooMany:      {http.StatusTooManyRequests, true},
		pki.ReasonUnavailable:  {http.StatusServiceUnavailable, true},
		"of a version to come": {http.StatusForbidden, false},
	} {
		if reason.Status() != want.status || reason.Temporary() != want.temporary {
			t.Errorf("%s: status %d, temporary %v", reason, reason.Status(), reason.Temporary())
		}
	}
}
