// Command credentials is an image credential provider of the kubelet (KEP-2133): it answers on its
// output with the name and password of its environment for the image that it is asked for on its
// input.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	credentialprovider "k8s.io/kubelet/pkg/apis/credentialprovider/v1"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	var request credentialprovider.CredentialProviderRequest
	if err := json.NewDecoder(os.Stdin).Decode(&request); err != nil {
		return fmt.Errorf("reading the request: %w", err)
	}
	registry, _, _ := strings.Cut(request.Image, "/")
	return json.NewEncoder(os.Stdout).Encode(credentialprovider.CredentialProviderResponse{
		TypeMeta:     metav1.TypeMeta{APIVersion: credentialprovider.SchemeGroupVersion.String(), Kind: "CredentialProviderResponse"},
		CacheKeyType: credentialprovider.RegistryPluginCacheKeyType,
		Auth:         map[string]credentialprovider.AuthConfig{registry: {Username: os.Getenv("REGISTRY_USER"), Password: os.Getenv("REGISTRY_PASSWORD")}},
	})
}
