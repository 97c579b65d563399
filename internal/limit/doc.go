// Package limit keeps one client of a program from taking what is meant for all: requests in a time, and connections.
package limit
