// Package service has the rules by which a pod's packet to a Service finds an endpoint. It is pure: values in, values
// out, and nothing of Kubernetes' types.
//
// The rules are those of kube-proxy 1.36 for packets of pods: which endpoints a node may use (KEP-2433 topology hints,
// KEP-4444 traffic distribution, KEP-2086 internalTrafficPolicy), when endpoints that terminate are used (KEP-1669),
// which Services have no frontends (headless, ExternalName), and which addresses of a load balancer are none (KEP-1860,
// ipMode: Proxy). Choose has them; Divide spreads connections over what Choose returns.
package service
