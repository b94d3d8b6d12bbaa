package main

import (
	"net/http"
	"net/url"
	"testing"
)

type seen struct{ url *url.URL }

func (s *seen) RoundTrip(r *http.Request) (*http.Response, error) {
	s.url = r.URL
	return &http.Response{}, nil
}

func TestRedirect(t *testing.T) {
	const to = "/apis/subresources.skerry.io/v1alpha1/namespaces/a/pods/b/"
	for path, want := range map[string]string{
		"/api/v1/namespaces/a/pods/b/log":                      to + "log",
		"/api/v1/namespaces/a/pods/b/exec":                     to + "exec",
		"/api/v1/namespaces/a/pods/b/attach":                   to + "attach",
		"/api/v1/namespaces/a/pods/b/portforward":              to + "portforward",
		"/k8s/clusters/c-1/api/v1/namespaces/a/pods/b/log":     "/k8s/clusters/c-1" + to + "log",
		"/api/v1/namespaces/a/pods/b":                          "",
		"/api/v1/namespaces/a/pods/b/log/more":                 "",
		"/api/v1/namespaces/a/pods/b/proxy/log":                "",
		"/api/v1/namespaces/a/services/b/log":                  "",
		"/apis/apps/v1/namespaces/a/deployments/b":             "",
		"/api/v1/namespaces/a/pods/b/eviction":                 "",
		"/apis/subresources.skerry.io/v1/namespaces/a/pods/b/": "",
	} {
		s := &seen{}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://cluster"+path+"?follow=true", nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := redirect(s).RoundTrip(req); err != nil {
			t.Fatal(err)
		}
		if want == "" {
			want = path
		}
		if got := s.url.Path; got != want || s.url.RawQuery != "follow=true" {
			t.Errorf("%s: asked for %s?%s, want %s", path, got, s.url.RawQuery, want)
		}
		if req.URL.Path != path {
			t.Errorf("%s: the caller's request is changed to %s", path, req.URL.Path)
		}
	}
}
