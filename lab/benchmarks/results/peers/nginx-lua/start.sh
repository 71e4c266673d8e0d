exec nginx -p "@DIR@" -c "@DIR@/nginx.conf"
