# Varnish passes requests with Authorization by its cache, so the header is dropped
# (docs.varnish-software.com/book/edge/authentication). Objects are kept for an hour instead of two minutes.
vcl 4.1;

backend origin {
  .host = "127.0.0.1";
  .port = "@ORIGIN@";
}

sub vcl_recv {
  unset req.http.Authorization;
}

sub vcl_backend_response {
  if (beresp.status == 200) {
    set beresp.ttl = 1h;
  }
}
